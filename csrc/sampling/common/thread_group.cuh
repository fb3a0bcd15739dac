// Collective operations of a warp or a block that serves one target.
#pragma once

#include <cstdint>

#include "common/cuda_check.cuh"
#include "common/warp.cuh"

namespace peergraph {

/// All threads of the group must make each call together.
template <int kNumThreads>
struct ThreadGroup {
  static constexpr int kThreads = kNumThreads;
  static constexpr bool kIsWarp = kThreads == kWarpSize;
  static constexpr int kWarps = kThreads / kWarpSize;

  uint64_t* partial;  // [kWarps] in shared memory; unused if the group is a warp

  __device__ static int thread_rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int num_threads() { return kThreads; }

  __device__ static void sync() {
    if constexpr (kIsWarp)
      __syncwarp();
    else
      __syncthreads();
  }

  /// The sum of the values of the threads before this one; `total` becomes the sum of all
  /// threads.
  __device__ uint64_t exclusive_sum(uint64_t value, uint64_t& total) const {
    const uint64_t sum = warp_inclusive_sum(value);
    if constexpr (kIsWarp) {
      total = __shfl_sync(kFullMask, sum, kWarpSize - 1);
      return sum - value;
    } else {
      const int warp = warp_in_block();
      if (lane_id() == kWarpSize - 1) partial[warp] = sum;
      __syncthreads();
      uint64_t before = 0;
      total = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += partial[w];
        total += partial[w];
      }
      __syncthreads();  // the next call writes to `partial` again
      return before + sum - value;
    }
  }

  __device__ uint64_t reduce_sum(uint64_t value) const {
    uint64_t total;
    exclusive_sum(value, total);
    return total;
  }

  __device__ uint64_t reduce_max(uint64_t value) const {
    for (int reach = kWarpSize / 2; reach > 0; reach /= 2) {
      const uint64_t other = __shfl_xor_sync(kFullMask, value, reach);
      value = other > value ? other : value;
    }
    if constexpr (!kIsWarp) {
      if (lane_id() == 0) partial[warp_in_block()] = value;
      __syncthreads();
      for (int w = 0; w < kWarps; ++w) value = partial[w] > value ? partial[w] : value;
      __syncthreads();
    }
    return value;
  }
};

using WarpGroup = ThreadGroup<kWarpSize>;
using BlockGroup = ThreadGroup<kBlockThreads>;

/// The threads of a block of any size, for functions of groups that only wait for each other.
struct WholeBlock {
  __device__ static int thread_rank() { return static_cast<int>(threadIdx.x); }
  __device__ static int num_threads() { return static_cast<int>(blockDim.x); }
  __device__ static void sync() { __syncthreads(); }
};

/// Bitonic sort by the threads of a group. `count` is a power of two.
template <typename Group>
__device__ void sort_keys(const Group& group, uint64_t* keys, int64_t count) {
  for (int64_t size = 2; size <= count; size *= 2) {
    for (int64_t half = size / 2; half > 0; half /= 2) {
      group.sync();
      for (int64_t pair = group.thread_rank(); pair < count / 2; pair += group.num_threads()) {
        const int64_t low = 2 * pair - (pair & (half - 1));
        const uint64_t a = keys[low], b = keys[low + half];
        const bool ascending = (low & size) == 0;
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[low + half] = a;
        }
      }
    }
  }
  group.sync();
}

}  // namespace peergraph
