// Sums of messages over the edges of each row: g-SpMM (WholeGraph III-C4).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

struct Spmm {
  CsrMatrix matrix;
  Operands operands;
  DType dtype = DType::kFloat32;  // of x, e and out
  bool mean = false;              // divide by the number of edges
  bool accumulate = false;        // add to `out` instead of writing it
  /// [matrix.num_rows, operands.columns]. Empty rows become zeros, or keep their values if the
  /// operation accumulates. Each value is rounded to dtype once, after the addition.
  void* out = nullptr;
};

/// Sums in float (double for double), the edges of a row in order. All memory is this CPU's.
void spmm_cpu(const Spmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spmm_cpu, on a GPU; asynchronous. Rows are summed in a fixed order, which depends on the
/// matrix's schedule and is not the order of the CPU. Scratch memory comes from `allocate` and is
/// used in the launch's stream only.
void spmm_cuda(const Spmm& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
