// Atomic additions of several adjacent values.
#pragma once

#include "aggregate/lane_columns.cuh"

namespace peergraph {

template <int kVec>
__device__ __forceinline__ void add_pack(float* at, const Pack<float, kVec>& pack) {
#if __CUDA_ARCH__ >= 900
  constexpr bool kByFour = kVec % 4 == 0;  // Hopper adds 16 bytes at once
#else
  constexpr bool kByFour = false;
#endif
  if constexpr (kByFour) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4)
      atomicAdd(
          reinterpret_cast<float4*>(at + i),
          make_float4(pack.values[i], pack.values[i + 1], pack.values[i + 2], pack.values[i + 3]));
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) atomicAdd(at + i, pack.values[i]);
  }
}

template <int kVec>
__device__ __forceinline__ void add_pack(double* at, const Pack<double, kVec>& pack) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) atomicAdd(at + i, pack.values[i]);
}

}  // namespace peergraph
