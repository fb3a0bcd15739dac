// Sums of messages that run along the edges backwards: from each row to its columns. The gradient
// of g-SpMM without a transpose (WholeGraph III-C4).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"

namespace peergraph {

struct Spread {
  CsrMatrix rows;
  Operands of;  // x by row of the adjacency
  DType dtype = DType::kFloat32;
  /// [num_columns] how often a column occurs at most, or null. Where it says once, the one message
  /// is stored, not added.
  const int32_t* counts = nullptr;
  /// [num_columns, of.columns] of float (double for double), zeros at the start.
  void* out = nullptr;
};

/// Adds up in the order of the edges. All memory is this CPU's.
void spread_cpu(const Spread& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spread_cpu, on `device` in `stream`; asynchronous. Adds by atomics: in no fixed order.
/// `max_chunks` and `allocate` as in spmm.h.
void spread_cuda(const Spread& op, int64_t max_chunks, const Allocate& allocate, int device,
                 uintptr_t stream);
#endif

}  // namespace peergraph
