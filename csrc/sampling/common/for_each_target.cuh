// Runs a functor on each target of a hop: a warp serves a target, and the whole block a target
// with a long list.
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/common/thread_group.cuh"
#include "store/csc_view.h"

namespace peergraph {

constexpr int kGroupsPerBlock = kBlockThreads / kWarpSize;
constexpr int kWarpKeys = 256;  // longer lists are given to the block
constexpr int kBlockKeys = kWarpKeys * kGroupsPerBlock;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits >= kWarpKeys, "a histogram has memory for a word of each key");

/// Shared memory of a group of threads. The compiler removes arrays that the functor does not
/// use.
struct SharedScratch {
  uint64_t* keys;       // [capacity]
  int64_t capacity;     // at least the group's threads
  uint32_t* histogram;  // [kDigits], in memory for [capacity]
  uint64_t* found;      // [3]
};

/// Calls work(group, scratch, csc, hop, target).
template <typename Work>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_target(const __grid_constant__ CscView csc, const __grid_constant__ Hop hop,
                    const __grid_constant__ Work work) {
  static_assert(sizeof(CscView) + sizeof(Hop) + sizeof(Work) < 4000, "kernel parameters");
  __shared__ uint64_t keys[kBlockKeys];
  __shared__ uint32_t histograms[kGroupsPerBlock][kDigits];
  __shared__ uint64_t found[kGroupsPerBlock][3];
  __shared__ uint64_t partial[kGroupsPerBlock];
  __shared__ bool is_long[kGroupsPerBlock];
  const int warp = warp_in_block();
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kGroupsPerBlock;
  const int64_t own = block_begin + warp;
  bool own_is_long = false;
  if (own < hop.num_targets) {
    own_is_long = hop.degree(csc, own) > kWarpKeys;
    if (!own_is_long)
      work(WarpGroup{nullptr},
           SharedScratch{keys + warp * kWarpKeys, kWarpKeys, histograms[warp], found[warp]}, csc,
           hop, own);
  }
  if (lane_id() == 0) is_long[warp] = own_is_long;
  __syncthreads();
  for (int w = 0; w < kGroupsPerBlock; ++w) {
    if (!is_long[w]) continue;
    work(BlockGroup{partial}, SharedScratch{keys, kBlockKeys, histograms[0], found[0]}, csc, hop,
         block_begin + w);
    __syncthreads();  // before the next target uses the work space
  }
}

template <typename Work>
void launch_each_target(const CscView& csc, const Hop& hop, const Work& work, cudaStream_t stream) {
  const int64_t blocks = (hop.num_targets + kGroupsPerBlock - 1) / kGroupsPerBlock;
  for_each_target<<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(csc, hop, work);
  PG_LAUNCH_CHECK("for_each_target");
}

}  // namespace peergraph
