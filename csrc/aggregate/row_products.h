// Matrix products over the rows of mini-batches, by cuBLASLt. Every batch has another number of
// rows.
//
// To choose a kernel for a shape that it has not seen takes cuBLAS longer than most of these
// products take a GPU. So kernels are chosen for numbers of rows of few digits, and kept.
#pragma once

#include <cstdint>

#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

/// All matrices are contiguous, by rows, float16 or bfloat16.
struct RowProduct {
  DType dtype;      // of the operands and the bias
  DType out_dtype;  // the same, or float32
  const void* left = nullptr;
  const void* right = nullptr;
  const void* bias = nullptr;  // [columns of out] or null
  void* out = nullptr;
  int64_t rows = 0;            // of `left`
  int64_t left_columns = 0;    // of `left`
  int64_t out_columns = 0;     // of `out`
  bool is_transposed = false;  // `right` is [out_columns, left_columns], else the other way round
  // Whether rows are summed: out [left_columns, out_columns] = left^T right, right [rows,
  // out_columns]. Else out [rows, out_columns] = left right.
  bool sums_rows = false;
  bool adds = false;  // to `out`
};

#ifdef PEERGRAPH_CUDA
/// Returns whether cuBLASLt could do it: it is the one that torch has loaded, if there is one.
bool multiply_rows_cuda(const RowProduct& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
