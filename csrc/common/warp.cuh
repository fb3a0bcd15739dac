// Warps: their size, the place of a thread in them, and sums over their lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace peergraph {

constexpr int kWarpSize = 32;
constexpr unsigned kFullMask = 0xffffffffu;  // all lanes take part in a warp's collective

/// The lane of this thread, in blocks of one dimension.
__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % kWarpSize); }

__device__ __forceinline__ int warp_in_block() { return static_cast<int>(threadIdx.x / kWarpSize); }

__device__ __forceinline__ int64_t global_warp() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarpSize;
}

__device__ __forceinline__ int64_t grid_warps() {
  return static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarpSize);
}

/// The sum over groups of `group_lanes` lanes, a power of two: lane i of each group gets the sum of
/// the lanes i of all groups. With 1 every lane gets the sum of the warp.
template <typename Value>
__device__ __forceinline__ Value sum_over_groups(Value value, int group_lanes = 1) {
  for (int offset = group_lanes; offset < kWarpSize; offset *= 2)
    value += __shfl_xor_sync(kFullMask, value, offset);
  return value;
}

/// The sum of the values of the lanes up to this one.
template <typename Value>
__device__ __forceinline__ Value warp_inclusive_sum(Value value) {
  const int lane = lane_id();
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const Value left = __shfl_up_sync(kFullMask, value, offset);
    if (lane >= offset) value += left;
  }
  return value;
}

}  // namespace peergraph
