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
  DType dtype = DType::kFloat32;  // of x and e
  bool mean = false;              // divide by the number of edges
  bool accumulate = false;        // add to `out` instead of writing it
  /// [matrix.num_rows, operands.columns]. Empty rows become zeros, or keep their values if the
  /// operation accumulates. Each value is rounded to out_dtype once, after the addition.
  void* out = nullptr;
  /// As dtype; or kFloat16 or kBfloat16 for operands of kFloat32.
  DType out_dtype = DType::kFloat32;
  int64_t out_stride = 0;  // elements from a row of `out` to the next one; 0: operands.columns

  int64_t row_stride() const { return out_stride > 0 ? out_stride : operands.columns; }
};

/// Raises an error if sums of rows of `dtype` cannot be written as `out_dtype`.
void check_out_dtype(DType dtype, DType out_dtype);

/// Sums in float (double for double), the edges of a row in order. All memory is this CPU's.
void spmm_cpu(const Spmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spmm_cpu, on a GPU; asynchronous. Rows are summed in a fixed order, which depends on the
/// matrix's schedule and is not the order of the CPU. Scratch memory comes from `allocate` and is
/// used in the launch's stream only.
void spmm_cuda(const Spmm& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
