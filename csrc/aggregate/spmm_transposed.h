// Sums of messages that go along the edges backwards, from each row to its columns: the gradient of
// g-SpMM without a transpose (WholeGraph III-C4).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

struct SpmmTransposed {
  CsrMatrix matrix;
  Operands operands;  // x by row of the adjacency
  DType dtype = DType::kFloat32;
  /// [num_columns] upper bounds of how often each column occurs, or null. If a column occurs once,
  /// its message is stored, not added.
  const int32_t* counts = nullptr;
  /// [num_columns, operands.columns] of float (double for double), zeros at the start.
  void* out = nullptr;
};

/// Adds up in the order of the edges. All memory is this CPU's.
void spmm_transposed_cpu(const SpmmTransposed& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spmm_transposed_cpu, on a GPU; asynchronous. Adds by atomics: in no fixed order.
/// `allocate` as in spmm.h.
void spmm_transposed_cuda(const SpmmTransposed& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
