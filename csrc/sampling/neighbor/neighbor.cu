// Kernels that sample the neighbours of a hop's targets by WholeGraph's Algorithm 1, which
// without_replacement.cuh explains.
#include <algorithm>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "common/warp.cuh"
#include "sampling/common/hop_batch.cuh"
#include "sampling/common/thread_group.cuh"
#include "sampling/neighbor/neighbor.h"
#include "sampling/neighbor/without_replacement.cuh"

namespace peergraph {
namespace {

constexpr int kWarpsPerBlock = kBlockThreads / kWarpSize;
constexpr int64_t kSharedFanout = 2048;  // largest fanout whose work space is in shared memory
constexpr int64_t kMaxScratchBytes = int64_t{256} << 20;
constexpr int64_t kHubDegree = 2048;  // lists longer than this are copied by a whole block

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

/// The place of a lane's pick among the `count` picks of its group, in the order of the list. All
/// lanes of the warp must call the function together.
template <int kGroup>
__device__ __forceinline__ int place_of_pick(int64_t pick, bool drawing, int64_t count) {
  const int lane = lane_id();
  const int i = lane % kGroup;
  int before = 0;
  for (int k = 0; k < kGroup; ++k) {
    const int64_t other = __shfl_sync(kFullMask, pick, lane - i + k);
    before += k < count && other < pick ? 1 : 0;
  }
  return drawing ? before : i;
}

/// Bytes of the memory of `capacity` draws.
constexpr int64_t draw_bytes(int64_t capacity) {
  return capacity * static_cast<int64_t>(sizeof(uint64_t) + sizeof(int));
}

__device__ SortedDraws draws_at(void* memory, int bits) {
  auto* const keys = static_cast<uint64_t*>(memory);
  return {keys, reinterpret_cast<int*>(keys + (int64_t{1} << bits)), bits};
}

template <typename Hops>
__global__ void __launch_bounds__(kBlockThreads) count_kernel(const __grid_constant__ Hops hops) {
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const CscView& csc = hops.relation(part).csc;
  for (int64_t t = part.thread(); t < hop.num_targets; t += part.threads())
    hop.offsets[t] = hop.edges_of(hop.degree(csc, t));
}

/// The neighbours of a target. Most targets of many relations have none, so the offsets, if they
/// are known, are looked at first: they lie one after the other, and lists do not.
__device__ __forceinline__ Neighbors list_of(const CscView& csc, const Hop& hop, int64_t target) {
  if (hop.stride == 0 && hop.offsets[target] == hop.offsets[target + 1]) return {nullptr, 0, 0};
  return hop.neighbors(csc, target);
}

/// One group of kGroup lanes for each target, and one lane for each draw; for fanouts up to
/// kGroup.
template <int kGroup, typename Hops>
__global__ void __launch_bounds__(kBlockThreads) sample_by_lane(const __grid_constant__ Hops hops) {
  __shared__ int chains[kBlockThreads];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const CscView& csc = hops.relation(part).csc;
  const int i = threadIdx.x % kGroup;
  const int64_t t = part.thread() / kGroup;
  const bool live = t < hop.num_targets;  // no early return: the warp works together below
  Neighbors list{nullptr, 0, 0};
  if (live) list = list_of(csc, hop, t);
  const int64_t count = hop.edges_of(list.degree);
  const bool drawing = count < list.degree && i < count;
  int64_t pick = i;
  if (__any_sync(kFullMask, drawing)) {
    const int64_t drawn =
        draw_by_lane<kGroup>(hop.random, drawing, list.degree, hop.fanout,
                             drawing ? hop.position(t) : 0, chains + (threadIdx.x - i));
    if (drawing) pick = drawn;
  }
  const int place = hop.parts == nullptr ? i : place_of_pick<kGroup>(pick, drawing, count);
  if (!live) return;
  if (i == 0) store_count(hop, t, count);
  const int64_t first = hop.first_slot(t);
  if (i < count)
    write_edge(csc, hop, part.sources.index, list, t, first + place, pick);
  else if (i < hop.stride)
    store_id(hop.sources, hop.index_bytes, first + i, -1);
}

/// One block for each target; for larger fanouts, of up to 2^most_bits draws. Without `scratch` the
/// work space is shared memory.
template <typename Hops>
__global__ void __launch_bounds__(kBlockThreads)
    sample_by_block(const __grid_constant__ Hops hops, int most_bits, char* scratch) {
  extern __shared__ uint64_t shared[];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const NodeIndex& sources = part.sources.index;
  const CscView& csc = hops.relation(part).csc;
  const int64_t scratch_bytes = draw_bytes(int64_t{1} << most_bits);
  void* memory = scratch == nullptr ? static_cast<void*>(shared)
                                    : scratch + static_cast<int64_t>(blockIdx.x) * scratch_bytes;
  const SortedDraws draws = draws_at(memory, SortedDraws::bits_for(hop.fanout));
  const WholeBlock group;
  for (int64_t t = part.block; t < hop.num_targets; t += part.blocks) {
    const Neighbors list = list_of(csc, hop, t);
    const int64_t count = hop.edges_of(list.degree);
    if (threadIdx.x == 0) store_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      write_edge(csc, hop, sources, list, t, first + i, pick);
    };
    if (count < list.degree) {
      draws.make(group, hop.random, list.degree, count, hop.position(t));
      if (hop.parts == nullptr) {
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x)
          emit(draws.draw(k), draws.pick(k, list.degree));
      } else {  // in the order of the list
        sort_picks(group, draws, list.degree, count);
        for (int64_t k = threadIdx.x; k < count; k += blockDim.x)
          emit(k, static_cast<int64_t>(draws.keys[k]));
      }
    } else {
      for (int64_t i = threadIdx.x; i < count; i += blockDim.x) emit(i, i);
    }
    for (int64_t i = count + threadIdx.x; i < hop.stride; i += blockDim.x)
      store_id(hop.sources, hop.index_bytes, first + i, -1);
    __syncthreads();  // before the next target uses the work space
  }
}

/// Fanout -1 with dense slots: one warp for each target, the whole block for long lists.
template <typename Hops>
__global__ void __launch_bounds__(kBlockThreads) copy_all(const __grid_constant__ Hops hops) {
  __shared__ Neighbors lists[kWarpsPerBlock];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const NodeIndex& sources = part.sources.index;
  const CscView& csc = hops.relation(part).csc;
  const int warp = warp_in_block(), lane = lane_id();
  const int64_t block_begin = part.block * kWarpsPerBlock;
  const int64_t own = block_begin + warp;
  Neighbors list{nullptr, 0, 0};
  if (own < hop.num_targets) list = list_of(csc, hop, own);
  if (lane == 0) lists[warp] = list;
  if (list.degree <= kHubDegree && list.degree > 0) {
    const int64_t first = hop.first_slot(own);
    for (int64_t i = lane; i < list.degree; i += kWarpSize)
      write_edge(csc, hop, sources, list, own, first + i, i);
  }
  __syncthreads();
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    const Neighbors hub = lists[w];
    if (hub.degree <= kHubDegree) continue;
    const int64_t first = hop.first_slot(block_begin + w);
    for (int64_t i = threadIdx.x; i < hub.degree; i += kBlockThreads)
      write_edge(csc, hop, sources, hub, block_begin + w, first + i, i);
  }
}

/// Launches sample_by_lane for the fanouts from `least` to kGroup.
template <int kGroup>
void launch_by_lane(const HopBatch& batch, int64_t least) {
  const auto blocks_of = [&](const Hop& hop, const RelationView& relation) -> int64_t {
    if (!draws_uniformly(hop, relation.choice) || hop.fanout < least || hop.fanout > kGroup)
      return 0;
    constexpr int64_t kTargetsPerBlock = kBlockThreads / kGroup;
    return (hop.num_targets + kTargetsPerBlock - 1) / kTargetsPerBlock;
  };
  launch_for<OneHopAndRelation>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t) {
    sample_by_lane<kGroup><<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops);
    PG_LAUNCH_CHECK("sample_by_lane");
  });
}

/// Launches sample_by_block for the fanouts from `least` to `most`.
void launch_by_block(const HopBatch& batch, int64_t least, int64_t most) {
  const auto takes = [&](const Hop& hop, const RelationView& relation) {
    return draws_uniformly(hop, relation.choice) && hop.fanout >= least && hop.fanout <= most;
  };
  int64_t hops_taken = 0, fanout = 0;
  for (const HopRef& ref : batch.hops()) {
    if (!takes(*ref.hop, *ref.relation)) continue;
    ++hops_taken;
    fanout = std::max(fanout, ref.hop->fanout);
  }
  const bool in_shared = fanout <= kSharedFanout;
  const int most_bits = SortedDraws::bits_for(fanout);
  const int64_t bytes = draw_bytes(int64_t{1} << most_bits);
  const auto blocks_of = [&](const Hop& hop, const RelationView& relation) -> int64_t {
    if (!takes(hop, relation)) return 0;
    if (in_shared) return hop.num_targets;
    const int64_t room = kMaxScratchBytes / bytes / hops_taken;
    return std::clamp<int64_t>(room, 1, hop.num_targets);
  };
  const auto threads = static_cast<unsigned>(
      std::clamp<int64_t>((int64_t{1} << most_bits) / 2, kWarpSize, kBlockThreads));
  launch_for<OneHopAndRelation>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t) {
    char* const scratch =
        in_shared ? nullptr : static_cast<char*>(batch.arena().take(blocks * bytes));
    sample_by_block<<<blocks, threads, in_shared ? static_cast<size_t>(bytes) : 0,
                      as_stream(batch.stream())>>>(hops, most_bits, scratch);
    PG_LAUNCH_CHECK("sample_by_block");
  });
}

}  // namespace

void count_neighbors_cuda(const HopBatch& batch) {
  const auto blocks_of = [](const Hop& hop, const RelationView& relation) -> int64_t {
    return draws_uniformly(hop, relation.choice) && hop.num_targets > 0 ? grid_for(hop.num_targets)
                                                                        : 0;
  };
  launch_for<OneHopAndRelation>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t) {
    count_kernel<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops);
    PG_LAUNCH_CHECK("count_kernel");
  });
}

void sample_neighbors_cuda(const HopBatch& batch) {
  const auto blocks_of_all = [](const Hop& hop, const RelationView& relation) -> int64_t {
    if (!draws_uniformly(hop, relation.choice) || hop.fanout >= 0) return 0;
    return (hop.num_targets + kWarpsPerBlock - 1) / kWarpsPerBlock;
  };
  launch_for<OneHopAndRelation>(
      batch, blocks_of_all, [&](const auto& hops, unsigned blocks, size_t) {
        copy_all<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops);
        PG_LAUNCH_CHECK("copy_all");
      });
  launch_by_lane<4>(batch, 0);
  launch_by_lane<8>(batch, 5);
  launch_by_lane<16>(batch, 9);
  launch_by_lane<kWarpSize>(batch, kWarpSize / 2 + 1);
  launch_by_block(batch, kWarpSize + 1, kSharedFanout);
  launch_by_block(batch, kSharedFanout + 1, INT64_MAX);
}

}  // namespace peergraph
