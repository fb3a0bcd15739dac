// Writes the sums of a row, or of its chunks, for kernels that sum messages.
#pragma once

#include <cstdint>
#include <type_traits>

#include "aggregate/lane_columns.cuh"
#include "aggregate/message.h"
#include "common/element.h"

namespace peergraph {

template <typename T>
struct SpmmOutput {
  T* out;                     // of `narrow`, if that is a narrower type
  AccumulatorOf<T>* partial;  // [slots of the queue, partial_stride]
  int64_t partial_stride;     // columns, rounded up to whole vectors
  bool mean;
  bool accumulate;
  int64_t stride;                  // elements from a row of `out` to the next one
  bool aligned = true;             // vectors of `out`, of 16 bytes at most, can be written
  DType narrow = DType::kFloat32;  // kFloat16 or kBfloat16: float sums are rounded to that type

  /// The value that a row of `degree` edges with this sum adds to the output.
  __device__ __forceinline__ AccumulatorOf<T> result(AccumulatorOf<T> sum, int64_t degree) const {
    return mean ? sum / static_cast<AccumulatorOf<T>>(degree > 0 ? degree : 1) : sum;
  }

  /// Calls body(out) with the address as a pointer to the type of the output.
  template <typename Body>
  __device__ __forceinline__ void with_out(const Body& body) const {
    if constexpr (std::is_same_v<T, float>) {
      if (narrow == DType::kBfloat16) return body(reinterpret_cast<Bfloat16*>(out));
      if (narrow == DType::kFloat16) return body(reinterpret_cast<Half*>(out));
    }
    body(out);
  }
};

/// Writes or adds a vector of sums, of which `count` values are columns of the output; at most 16
/// bytes at a time.
template <int kVec, typename Out, typename Value>
__device__ __forceinline__ void write_vector(Out* out, bool aligned, bool accumulate, int64_t count,
                                             Value (&sum)[kVec]) {
  if (kVec > 1 && !aligned) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i >= count) continue;
      if (accumulate) sum[i] += widen(out[i]);
      narrow(sum[i], out + i);
    }
    return;
  }
  constexpr int kWidest = 16 / sizeof(Out);
  constexpr int kStored = kVec < kWidest ? kVec : kWidest;
#pragma unroll
  for (int first = 0; first < kVec; first += kStored) {
    if (first > 0 && first >= count) continue;
    Pack<Out, kStored> pack;
    if (accumulate) {
      pack = load_pack<Out, kStored>(out + first);
#pragma unroll
      for (int i = 0; i < kStored; ++i) sum[first + i] += widen(pack.values[i]);
    }
#pragma unroll
    for (int i = 0; i < kStored; ++i) narrow(sum[first + i], &pack.values[i]);
    store_pack(out + first, pack);
  }
}

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
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[m][i] = output.result(sum[m][i], degree);
    output.with_out([&](auto* out) {
      write_vector<kVec>(out + row * output.stride + lane.columns[m], output.aligned,
                         output.accumulate, operands.columns - lane.columns[m], sum[m]);
    });
  }
}

}  // namespace peergraph
