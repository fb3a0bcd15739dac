// A function of the features of each edge's two ends and of the edge's feature: g-SDDMM
// (WholeGraph III-C4).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

/// The id by which an operand's row is looked up.
enum class Target : int32_t { kColumn = 0, kRow = 1, kEdge = 2 };

/// [rows, columns]. `columns` divides the op's columns; value h of a row belongs to the h-th group
/// of them.
struct EdgeOperand {
  const void* data = nullptr;
  Target target = Target::kColumn;
  int64_t columns = 0;
};

struct Sddmm {
  CsrMatrix matrix;
  EdgeOperand left, right;  // a message copies `left` as u, `right` as e
  Message message = Message::kCopyU;
  DType dtype = DType::kFloat32;  // of the operands
  int64_t heads = 1;              // columns of out
  int64_t depth = 1;              // values of the message that are summed for one of out
  void* out = nullptr;            // [num_edges, heads] by edge, written
  bool is_wide = false;           // out has the sums as they were added up, not narrowed to `dtype`

  /// Writes a sum to a place of `out`. T is the type of the operands' elements.
  template <typename T>
  PG_HD void write(int64_t place, AccumulatorOf<T> sum) const {
    if (is_wide) {
      static_cast<AccumulatorOf<T>*>(out)[place] = sum;
    } else {
      narrow(sum, static_cast<T*>(out) + place);
    }
  }
};

void sddmm_cpu(const Sddmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As sddmm_cpu, on a GPU; asynchronous.
void sddmm_cuda(const Sddmm& op, const Launch& launch);
#endif

}  // namespace peergraph
