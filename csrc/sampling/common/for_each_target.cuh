// Runs a functor on each target of hops: a warp serves a target, and the whole block a target
// with a long list.
#pragma once

#include <cstdint>

#include "sampling/common/hop_batch.cuh"
#include "sampling/common/thread_group.cuh"

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

/// Calls work(group, scratch, relation, hop, sources, target) for the targets of the hops.
template <typename Work, typename Hops>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_target(const __grid_constant__ Hops hops, const Work work) {
  __shared__ uint64_t keys[kBlockKeys];
  __shared__ uint32_t histograms[kGroupsPerBlock][kDigits];
  __shared__ uint64_t found[kGroupsPerBlock][3];
  __shared__ uint64_t partial[kGroupsPerBlock];
  __shared__ bool is_long[kGroupsPerBlock];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const NodeIndex& sources = part.sources.index;
  const RelationView& relation = hops.relation(part);
  const int warp = warp_in_block();
  const int64_t block_begin = part.block * kGroupsPerBlock;
  const int64_t own = block_begin + warp;
  bool own_is_long = false;
  if (own < hop.num_targets) {
    own_is_long = hop.degree(relation.csc, own) > kWarpKeys;
    if (!own_is_long)
      work(WarpGroup{nullptr},
           SharedScratch{keys + warp * kWarpKeys, kWarpKeys, histograms[warp], found[warp]},
           relation, hop, sources, own);
  }
  if (lane_id() == 0) is_long[warp] = own_is_long;
  __syncthreads();
  for (int w = 0; w < kGroupsPerBlock; ++w) {
    if (!is_long[w]) continue;
    work(BlockGroup{partial}, SharedScratch{keys, kBlockKeys, histograms[0], found[0]}, relation,
         hop, sources, block_begin + w);
    __syncthreads();  // before the next target uses the work space
  }
}

/// Launches the work for the targets of the hops that select(hop, choice) admits.
template <typename Work, typename Select>
void launch_each_target(const HopBatch& batch, const Work& work, const Select& select) {
  const auto blocks_of = [&](const Hop& hop, const RelationView& relation) -> int64_t {
    if (!select(hop, relation.choice)) return 0;
    return (hop.num_targets + kGroupsPerBlock - 1) / kGroupsPerBlock;
  };
  launch_for<OneHopAndRelation>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t) {
    for_each_target<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops, work);
    PG_LAUNCH_CHECK("for_each_target");
  });
}

}  // namespace peergraph
