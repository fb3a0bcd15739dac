// Writes the sums of a row, or of its chunks, for kernels that sum messages.
#pragma once

#include <cstdint>

#include "aggregate/lane_columns.cuh"
#include "aggregate/message.h"
#include "common/element.h"

namespace peergraph {

template <typename T>
struct SpmmOutput {
  T* out;
  AccumulatorOf<T>* partial;  // [slots of the queue, partial_stride]
  int64_t partial_stride;     // columns, rounded up to whole vectors
  bool mean;
  bool accumulate;

  /// The value that a row of `degree` edges with this sum adds to the output.
  __device__ __forceinline__ AccumulatorOf<T> result(AccumulatorOf<T> sum, int64_t degree) const {
    return mean ? sum / static_cast<AccumulatorOf<T>>(degree > 0 ? degree : 1) : sum;
  }
};

/// Writes the sums of a row of `degree` edges or, if `slot` is not -1, the sums of its chunk.
template <typename T, int kVec, int kItems>
__device__ __forceinline__ void write_sums(const Operands& operands,
                                           const LaneColumns<kVec, kItems>& lane, int64_t row,
                                           int64_t degree, int64_t slot,
                                           const SpmmOutput<T>& output,
                                           AccumulatorOf<T> (&sum)[kItems][kVec]) {
  using Value = AccumulatorOf<T>;
#pragma unroll
  for (int m = 0; m < kItems; ++m) {
    if (lane.group != 0 || !lane.active[m]) continue;
    if (slot >= 0) {
      Value* partial = output.partial + slot * output.partial_stride + lane.columns[m];
#pragma unroll
      for (int i = 0; i < kVec; ++i) partial[i] = sum[m][i];
      continue;
    }
    T* out = output.out + row * operands.columns + lane.columns[m];
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[m][i] = output.result(sum[m][i], degree);
    if (kVec > 1 && operands.columns % kVec != 0) {  // rows of `out` are not aligned
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (lane.columns[m] + i >= operands.columns) continue;
        if (output.accumulate) sum[m][i] += widen(out[i]);
        narrow(sum[m][i], out + i);
      }
      continue;
    }
    Pack<T, kVec> pack;
    if (output.accumulate) {
      pack = load_pack<T, kVec>(out);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[m][i] += widen(pack.values[i]);
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) narrow(sum[m][i], &pack.values[i]);
    store_pack(out, pack);
  }
}

}  // namespace peergraph
