// Copies of rows of features, dense or at addresses, into some columns of a matrix, narrowed on the
// way.
#pragma once

#include <cstdint>

#include "aggregate/message.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

struct RowCopy {
  Operands operands;              // x or x_rows; a row at the address 0 becomes zeros
  DType dtype = DType::kFloat32;  // of the rows; of narrow rows, as users see them
  int64_t num_rows = 0;
  /// [num_rows, operands.columns], rows of `out_stride` elements.
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;  // as in Spmm
  int64_t out_stride = 0;
};

/// out[i] = row i of the operands, rounded to out_dtype. All memory is this CPU's.
void copy_rows_cpu(const RowCopy& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As copy_rows_cpu, on a GPU; asynchronous.
void copy_rows_cuda(const RowCopy& op, const Launch& launch);
#endif

/// Calls body(element of the rows, element of the output), default values of the two types.
template <typename Body>
void with_copied_dtypes(DType dtype, DType out_dtype, const Body& body) {
  with_dtype(dtype, [&](auto element) {
    if (dtype == out_dtype) return body(element, element);
    if constexpr (std::is_same_v<decltype(element), float>) {
      if (out_dtype == DType::kFloat16) return body(element, Half{});
      body(element, Bfloat16{});
    }
  });
}

}  // namespace peergraph
