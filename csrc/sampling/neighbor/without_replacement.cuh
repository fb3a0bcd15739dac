// WholeGraph's Algorithm 1 on the GPU: sequential swap-with-last, computed in parallel.
//
// With N = degree, M = fanout and r[i] the i-th draw: draw i gets r[i] unless an earlier draw had
// the same r; then it gets what the latest such draw j moved there, the element that was at N - 1 -
// j at that time. chain[j] is the latest draw k with r[k] = N - 1 - j (what was there had been
// moved by k from N - 1 - k), or j if there is none; chains are followed by path doubling.
#pragma once

#include <cstdint>

#include "common/warp.cuh"
#include "sampling/neighbor/without_replacement.h"

namespace peergraph {

/// The pick of the draw of this lane. Groups of kGroup lanes have a target each, and each lane
/// has one draw. All lanes of the warp must call the function together; `drawing` says whether
/// this lane has a draw: false for the whole group, or true for its lanes 0 .. fanout-1.
///
/// chain: kGroup words of shared memory for each group.
template <int kGroup>
__device__ __forceinline__ int64_t draw_by_lane(const RandomStream& random, bool drawing,
                                                int64_t degree, int64_t fanout, int64_t target,
                                                int* chain) {
  const int lane = lane_id();
  const int i = lane % kGroup;
  const int group_begin = lane - i;
  const int64_t r = drawing ? random.draw(degree, target, i) : 0;
  // Degrees stay below 2^58, so the group fits above the draw; idle lanes are equal to none.
  const unsigned long long tag =
      drawing ? (static_cast<unsigned long long>(group_begin) << 58) | static_cast<uint64_t>(r)
              : (1ull << 63) | static_cast<unsigned>(lane);
  // Replaces the sort of Algorithm 1: the lanes that drew the same number.
  const unsigned equal = __match_any_sync(kFullMask, tag);

  chain[i] = i;
  __syncwarp();
  const bool latest = (equal >> lane) == 1u;
  if (drawing && latest && r >= degree - fanout) chain[degree - 1 - r] = i;
  __syncwarp();
  int root = chain[i];
  for (int reach = 1; reach < kGroup; reach *= 2)
    root = __shfl_sync(kFullMask, root, group_begin + root);

  const unsigned earlier = equal & ((1u << lane) - 1u);
  const int previous = earlier == 0u ? lane : kWarpSize - 1 - __clz(earlier);
  const int moved = __shfl_sync(kFullMask, root, previous);
  return earlier == 0u ? r : degree - 1 - moved;
}

/// Work space of draw_by_block, in shared or global memory.
struct BlockScratch {
  uint64_t* keys = nullptr;  // [capacity], capacity a power of two, at least the fanout
  int* chain = nullptr;      // [capacity]
  int64_t capacity = 0;
  int draw_bits = 0;  // bits of the index of a draw; capacity is 2^draw_bits

  static constexpr int64_t bytes(int64_t capacity) {
    return capacity * static_cast<int64_t>(sizeof(uint64_t) + sizeof(int));
  }

  __device__ static BlockScratch at(void* memory, int draw_bits) {
    BlockScratch scratch;
    scratch.capacity = int64_t{1} << draw_bits;
    scratch.keys = static_cast<uint64_t*>(memory);
    scratch.chain = reinterpret_cast<int*>(scratch.keys + scratch.capacity);
    scratch.draw_bits = draw_bits;
    return scratch;
  }
};

/// Bitonic sort by the threads of a block.
__device__ inline void sort_by_block(uint64_t* keys, int64_t count) {
  for (int64_t size = 2; size <= count; size *= 2) {
    for (int64_t half = size / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int64_t pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
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
  __syncthreads();
}

/// Calls emit(i, pick) for every draw of one target, with all threads of a block. Needs fanout
/// < degree.
template <typename Emit>
__device__ void draw_by_block(const RandomStream& random, int64_t degree, int64_t fanout,
                              int64_t target, const BlockScratch& scratch, const Emit& emit) {
  uint64_t* keys = scratch.keys;
  int* chain = scratch.chain;
  const int bits = scratch.draw_bits;
  for (int64_t i = threadIdx.x; i < scratch.capacity; i += blockDim.x) {
    keys[i] = i < fanout ? (static_cast<uint64_t>(random.draw(degree, target, i)) << bits) | i
                         : ~uint64_t{0};
    chain[i] = static_cast<int>(i);
  }
  sort_by_block(keys, scratch.capacity);

  const uint64_t draw_mask = static_cast<uint64_t>(scratch.capacity - 1);
  for (int64_t k = threadIdx.x; k < fanout; k += blockDim.x) {
    const int64_t r = static_cast<int64_t>(keys[k] >> bits);
    const bool latest = k == fanout - 1 || static_cast<int64_t>(keys[k + 1] >> bits) != r;
    if (latest && r >= degree - fanout)
      chain[degree - 1 - r] = static_cast<int>(keys[k] & draw_mask);
  }
  __syncthreads();
  // Path doubling in place, as many links at a time as there are threads. A link that is
  // doubled already only takes the links to it further.
  for (int64_t reach = 1; reach < fanout; reach *= 2) {
    for (int64_t begin = 0; begin < fanout; begin += blockDim.x) {
      const int64_t i = begin + threadIdx.x;
      const int further = i < fanout ? chain[chain[i]] : 0;
      __syncthreads();
      if (i < fanout) chain[i] = further;
      __syncthreads();
    }
  }
  for (int64_t k = threadIdx.x; k < fanout; k += blockDim.x) {
    const int64_t r = static_cast<int64_t>(keys[k] >> bits);
    const bool again = k > 0 && static_cast<int64_t>(keys[k - 1] >> bits) == r;
    const int64_t pick = again ? degree - 1 - chain[keys[k - 1] & draw_mask] : r;
    emit(static_cast<int64_t>(keys[k] & draw_mask), pick);
  }
}

}  // namespace peergraph
