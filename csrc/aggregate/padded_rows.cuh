// Copies of rows of features that can be read in vectors, for rows of any number of columns.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/lane_columns.cuh"
#include "common/allocate.h"
#include "common/cuda_check.cuh"

namespace peergraph {

/// Padded rows begin at multiples of this, so that each is read in whole sectors of memory.
constexpr int64_t kPaddedRowBytes = 32;
/// Narrower rows have few values, so that they are read quickly without padding.
constexpr int64_t kLeastPaddedBytes = 64;
/// A copy reads and writes each row once. It pays if edges read each row at least this many times.
constexpr int64_t kLeastReadsOfPadded = 4;

/// Returns whether messages are summed faster from a padded copy of x.
template <typename T>
bool pays_to_pad(const CsrMatrix& matrix, const Operands& operands) {
  const bool one_value = operands.message == Message::kCopyU ||
                         (operands.message == Message::kMul && operands.e_columns == 1);
  return one_value && operands.x_rows == nullptr &&
         operands.columns * static_cast<int64_t>(sizeof(T)) >= kLeastPaddedBytes &&
         matrix.num_edges >= kLeastReadsOfPadded * matrix.num_columns;
}

/// A warp copies as many rows at a time as its lanes hold in vectors; the padding becomes zeros.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    copy_to_padded_rows(const T* x, int64_t rows, int64_t columns, int64_t x_stride, T* out,
                        int64_t out_stride, int lanes_log2) {
  constexpr int kVec = 16 / sizeof(T);
  const int lanes = 1 << lanes_log2;
  const int64_t groups = grid_threads() >> lanes_log2;
  for (int64_t row = global_thread() >> lanes_log2; row < rows; row += groups) {
    const T* from = x + row * x_stride;
    for (int64_t first = (threadIdx.x & (lanes - 1)) * kVec; first < out_stride;
         first += lanes * kVec) {
      Pack<T, kVec> pack = {};
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (first + i < columns) pack.values[i] = from[first + i];
      *reinterpret_cast<Pack<T, kVec>*>(out + row * out_stride + first) = pack;
    }
  }
}

/// The operands with x in a padded copy in scratch memory.
template <typename T>
Operands pad_rows(const CsrMatrix& matrix, const Operands& operands, const Allocate& allocate,
                  cudaStream_t stream) {
  constexpr int64_t kUnit = kPaddedRowBytes / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kVec = 16 / sizeof(T);
  Operands padded = operands;
  padded.x_stride = (operands.columns + kUnit - 1) / kUnit * kUnit;
  const int64_t rows = matrix.num_columns;
  T* out = static_cast<T*>(allocate(rows * padded.x_stride * static_cast<int64_t>(sizeof(T))));
  padded.x = out;
  if (rows == 0) return padded;
  int lanes_log2 = 0;
  while (lanes_log2 < 5 && (kVec << lanes_log2) < padded.x_stride) ++lanes_log2;
  const unsigned blocks = grid_for(rows, kBlockThreads >> lanes_log2);
  copy_to_padded_rows<T><<<blocks, kBlockThreads, 0, stream>>>(
      static_cast<const T*>(operands.x), rows, operands.columns, operands.row_stride(), out,
      padded.x_stride, lanes_log2);
  PG_LAUNCH_CHECK("copy_to_padded_rows");
  return padded;
}

}  // namespace peergraph
