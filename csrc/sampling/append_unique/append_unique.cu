#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "common/warp.cuh"
#include "sampling/append_unique/append_unique.h"
#include "sampling/append_unique/node_index.h"
#include "sampling/common/hop_batch.cuh"

namespace peergraph {
namespace {

// One block works on a tile of slots. The slots of a thread are a block apart, so that their
// reads of the index, which are random, are in flight at once.
constexpr int kWarpsPerBlock = kBlockThreads / kWarpSize;
constexpr int kSlotsPerThread = 8;
constexpr int kTileSlots = kBlockThreads * kSlotsPerThread;
constexpr int kTileMasks = kTileSlots / kWarpSize;
static_assert(kTileMasks == 2 * kWarpSize, "a warp sums the masks of a tile up, two a lane");

/// Marks the first slots of new nodes.
struct Firsts {
  uint32_t* masks;  // [tiles * kTileMasks] a bit for each slot
  int64_t* sums;    // [tiles + 1] first slots in the tile; after the scan, before the tile
};

/// What the hops by all relations with the same type of sources share: the type's tiles, and where
/// the sizes go.
struct NewNodes {
  int64_t first_tile;
  int64_t end_tile;
  int64_t* sizes;  // [kAppendedWords]
};

/// Finds the first slots of new nodes. Other slots get the row of their node if it is known,
/// else the number of the first slot. The index is only read.
template <typename Id, bool kDirect, typename Hops>
__global__ void __launch_bounds__(kBlockThreads)
    find_firsts_kernel(const __grid_constant__ Hops hops, const Firsts firsts) {
  __shared__ int found[kWarpsPerBlock];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const NodeIndex& index = part.sources.index;
  const uint32_t base = with_base(index).base;
  const int warp = warp_in_block(), lane = lane_id();
  const int64_t tile = blockIdx.x;
  const int64_t begin = part.block * kTileSlots + threadIdx.x;
  Id* const sources = static_cast<Id*>(hop.sources);
  Id nodes[kSlotsPerThread];
  uint32_t entries[kSlotsPerThread];
  // No branch between the reads: threads behind the end read the last slot, and an unused slot
  // reads the word of node 0; both values are ignored.
#pragma unroll
  for (int k = 0; k < kSlotsPerThread; ++k) {
    const int64_t slot = begin + k * kBlockThreads;
    const Id node = sources[slot < hop.slots ? slot : hop.slots - 1];
    nodes[k] = slot < hop.slots ? node : Id{-1};
  }
#pragma unroll
  for (int k = 0; k < kSlotsPerThread; ++k) {
    if constexpr (kDirect)
      entries[k] = index.direct[nodes[k] < 0 ? 0 : nodes[k]] - base;
    else if (nodes[k] >= 0)
      entries[k] =
          index.get(hop.tree_of(static_cast<uint32_t>(begin + k * kBlockThreads)), nodes[k]);
    else
      entries[k] = 0;
  }
  int count = 0;
#pragma unroll
  for (int k = 0; k < kSlotsPerThread; ++k) {
    const int64_t slot = begin + k * kBlockThreads;
    const bool used = nodes[k] >= 0;
    const int64_t claimed = int64_t{entries[k]} - index.first_claim;  // negative for a row
    const bool is_first = used && claimed == hop.slots_before + slot;
    if (used && !is_first)
      sources[slot] = static_cast<Id>(claimed < 0 ? entries[k] : Hop::repeats(claimed));
    const uint32_t mask = __ballot_sync(kFullMask, is_first);
    if (lane == 0) firsts.masks[tile * kTileMasks + k * kWarpsPerBlock + warp] = mask;
    count += __popc(mask);
  }
  if (lane == 0) found[warp] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int64_t total = 0;
  for (int w = 0; w < kWarpsPerBlock; ++w) total += found[w];
  firsts.sums[tile] = total;
}

/// Gives the new node of a first slot its row.
__device__ __forceinline__ void append_node(const Hop& hop, const NodeList& nodes, uint32_t slot,
                                            int64_t node, int64_t row) {
  if (row >= nodes.capacity) {  // in a static shape: no capacity, the node is dropped
    store_id(hop.sources, hop.index_bytes, slot, nodes.padding_row);
    nodes.index.set(hop.tree_of(slot), node, kUnknown);
    return;
  }
  nodes.ids[row] = node;
  store_id(hop.sources, hop.index_bytes, slot, row);
  if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(hop.tree_of(slot));
  if (hop.looked_up_later)
    nodes.index.set(hop.tree_of(slot), node, with_base(nodes.index).row_word(row));
}

/// Gives the new nodes their rows, in order of their first slots, and writes the rows into
/// these slots. Each thread reads and writes its own slots alone.
template <typename Id, typename Hops, typename OfType>
__global__ void __launch_bounds__(kBlockThreads)
    append_firsts_kernel(const __grid_constant__ Hops hops, const Firsts firsts,
                         const OfType of_type) {
  __shared__ int before[kTileMasks];
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const NodeList& nodes = part.sources;
  const NewNodes& new_nodes = of_hop(of_type, part.index);
  const int warp = warp_in_block(), lane = lane_id();
  const int64_t tile = blockIdx.x;
  const int64_t begin = part.block * kTileSlots + threadIdx.x;
  const uint32_t* const masks = firsts.masks + tile * kTileMasks;
  if (warp == 0) {
    const int even = __popc(masks[2 * lane]), both = even + __popc(masks[2 * lane + 1]);
    const int sum = warp_inclusive_sum(both);
    before[2 * lane] = sum - both;
    before[2 * lane + 1] = sum - both + even;
  }
  __syncthreads();
  // The sums of other types, and of edges that were scanned too, come before those of the type.
  const int64_t before_type = firsts.sums[new_nodes.first_tile];
  if (tile == new_nodes.first_tile && threadIdx.x == 0) {
    new_nodes.sizes[0] = firsts.sums[new_nodes.end_tile] - before_type;
    new_nodes.sizes[1] = hop.offsets[hop.num_targets];
  }
  const int64_t first_row =
      nodes.count + (nodes.found == nullptr ? 0 : *nodes.found) + firsts.sums[tile] - before_type;
  const Id* const sources = static_cast<const Id*>(hop.sources);
  uint32_t mask[kSlotsPerThread];
  Id node[kSlotsPerThread];
#pragma unroll
  for (int k = 0; k < kSlotsPerThread; ++k) {
    mask[k] = masks[k * kWarpsPerBlock + warp];
    node[k] = (mask[k] >> lane & 1) == 0 ? Id{-1} : sources[begin + k * kBlockThreads];
  }
#pragma unroll
  for (int k = 0; k < kSlotsPerThread; ++k) {
    if (node[k] < 0) continue;
    const int earlier = before[k * kWarpsPerBlock + warp] + __popc(mask[k] & ((1u << lane) - 1));
    append_node(hop, nodes, static_cast<uint32_t>(begin + k * kBlockThreads), node[k],
                first_row + earlier);
  }
}

/// Counts that one exclusive scan replaces by their sums: the edges of targets, then the new nodes
/// of tiles. The total of each follows it.
struct Counts {
  int64_t* offsets;     // [num_offsets + 1]
  int64_t num_offsets;  // -1: only tiles are scanned
  int64_t* sums;        // [num_sums + 1]
  int64_t num_sums;     // -1: only edges are scanned

  int64_t num_items() const { return num_offsets + 1 + num_sums + 1; }
  __device__ int64_t read(int64_t i) const {
    if (i <= num_offsets) return i < num_offsets ? offsets[i] : 0;
    const int64_t tile = i - num_offsets - 1;
    return tile < num_sums ? sums[tile] : 0;
  }
  __device__ void write(int64_t i, int64_t sum) const {
    if (i <= num_offsets)
      offsets[i] = sum;
    else
      sums[i - num_offsets - 1] = sum;
  }
};

struct ReadCount {
  Counts counts;
  __device__ int64_t operator()(int64_t i) const { return counts.read(i); }
};

struct WriteSum {
  Counts counts;
  __device__ void operator()(int64_t i, int64_t sum) const { counts.write(i, sum); }
};

void sum_up(const Counts& counts, Arena& arena, cudaStream_t stream) {
  const auto scan = [&](void* scratch, size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(
        scratch, bytes,
        thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0), ReadCount{counts}),
        thrust::make_tabulate_output_iterator(WriteSum{counts}), counts.num_items(), stream);
  };
  size_t bytes = 0;
  PG_CUDA_CHECK(scan(nullptr, bytes));
  void* const scratch = arena.take(static_cast<int64_t>(bytes));
  PG_CUDA_CHECK(scan(scratch, bytes));
}

int64_t tiles_of(const Hop& hop) { return (hop.slots + kTileSlots - 1) / kTileSlots; }

/// The tiles of the types of sources, for each hop. Hops with the same list of nodes follow each
/// other.
std::vector<NewNodes> new_nodes_of(const HopBatch& batch, int64_t* sizes) {
  std::vector<NewNodes> result;
  const std::vector<HopRef>& hops = batch.hops();
  int64_t tile = 0;
  for (size_t begin = 0, end = 0; begin < hops.size(); begin = end, sizes += kAppendedWords) {
    NewNodes of_type{tile, tile, sizes};
    for (; end < hops.size() && hops[end].sources == hops[begin].sources; ++end)
      of_type.end_tile += tiles_of(*hops[end].hop);
    tile = of_type.end_tile;
    result.resize(end, of_type);
  }
  return result;
}

template <typename Id>
void append(const HopBatch& batch, int64_t* sizes) {
  const cudaStream_t stream = as_stream(batch.stream());
  Arena& arena = batch.arena();
  const std::vector<NewNodes> new_nodes = new_nodes_of(batch, sizes);
  const int64_t tiles = new_nodes.back().end_tile;
  Firsts firsts;
  firsts.masks = static_cast<uint32_t*>(arena.take(tiles * kTileMasks * sizeof(uint32_t)));
  firsts.sums = static_cast<int64_t*>(arena.take((tiles + 1) * sizeof(int64_t)));
  const Hop& first = *batch.hops().front().hop;
  const bool direct = batch.hops().front().sources->index.direct != nullptr;
  const auto blocks_of = [](const Hop& hop, const RelationView&) { return tiles_of(hop); };
  launch_for<OneHop>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t number) {
    using Hops = std::decay_t<decltype(hops)>;
    const auto find =
        direct ? find_firsts_kernel<Id, true, Hops> : find_firsts_kernel<Id, false, Hops>;
    find<<<blocks, kBlockThreads, 0, stream>>>(hops, firsts);
    PG_LAUNCH_CHECK("find_firsts_kernel");
    sum_up({first.offsets, first.stride > 0 ? first.num_targets : -1, firsts.sums, tiles}, arena,
           stream);
    append_firsts_kernel<Id><<<blocks, kBlockThreads, 0, stream>>>(
        hops, firsts, argument_of<Hops>(new_nodes, number, batch));
    PG_LAUNCH_CHECK("append_firsts_kernel");
  });
}

__global__ void __launch_bounds__(kBlockThreads)
    add_seeds_kernel(const IdMapView to_internal, int64_t num_nodes, const int64_t* seeds,
                     int64_t count, int64_t first_tree, const NodeList nodes, uint64_t seed_rank,
                     unsigned long long* first_bad) {
  for (int64_t i = global_thread(); i < count; i += grid_threads()) {
    int64_t id = seeds[i];
    if (id < 0 || id >= num_nodes) {
      atomicMin(first_bad, static_cast<unsigned long long>(seed_rank + i));
      id = 0;
    }
    const int64_t node = to_internal(id), row = nodes.count + i;
    const int64_t tree = nodes.trees == nullptr ? 0 : first_tree + i;
    nodes.ids[row] = node;
    if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(tree);
    claim(nodes.index, tree, node, nodes.index.row_word(row));
  }
}

__global__ void __launch_bounds__(kBlockThreads) reindex_kernel(const NodeList nodes) {
  for (int64_t row = global_thread(); row < nodes.count; row += grid_threads())
    claim(nodes.index, nodes.tree(row), nodes.ids[row], nodes.index.row_word(row));
}

/// Copies the number of edges of each of `count` relations, of which the counts of the targets
/// begin at begins[relation] of one array that was scanned.
__global__ void count_edges_kernel(const int64_t* sums, const int64_t* begins, int64_t count,
                                   int64_t* edges) {
  for (int64_t r = global_thread(); r < count; r += grid_threads())
    edges[r] = sums[begins[r + 1]] - sums[begins[r]];
}

/// Writes the offsets of each hop, from sums that go on from relation to relation.
template <typename Hops, typename Outputs>
__global__ void __launch_bounds__(kBlockThreads)
    write_offsets_kernel(const __grid_constant__ Hops hops, const Outputs outputs) {
  const HopPart part = hops.part();
  int64_t* const to = of_hop(outputs, part.index).begin;
  const int64_t* const sums = part.hop.offsets;
  for (int64_t t = part.thread(); t <= part.hop.num_targets; t += part.threads())
    to[t] = sums[t] - sums[0];
}

}  // namespace

void scan_offsets_cuda(int64_t* offsets, int64_t num_offsets, Arena& arena, uintptr_t stream) {
  sum_up({offsets, num_offsets, nullptr, -1}, arena, as_stream(stream));
}

void count_edges_cuda(const int64_t* sums, const std::vector<int64_t>& begins, int64_t* edges,
                      Arena& arena, uintptr_t stream) {
  const auto count = static_cast<int64_t>(begins.size()) - 1;
  count_edges_kernel<<<grid_for(count), kBlockThreads, 0, as_stream(stream)>>>(
      sums, copy_to_device(begins, arena, stream), count, edges);
  PG_LAUNCH_CHECK("count_edges_kernel");
}

void write_offsets_cuda(const HopBatch& batch, const std::vector<HopOffsets>& outputs) {
  const auto blocks_of = [](const Hop& hop, const RelationView&) -> int64_t {
    return grid_for(hop.num_targets + 1);
  };
  launch_for<OneHop>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t number) {
    using Hops = std::decay_t<decltype(hops)>;
    write_offsets_kernel<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(
        hops, argument_of<Hops>(outputs, number, batch));
    PG_LAUNCH_CHECK("write_offsets_kernel");
  });
}

void append_unique_cuda(const HopBatch& batch, int64_t* sizes) {
  const auto append_ids =
      batch.hops().front().hop->index_bytes == 4 ? append<int32_t> : append<int64_t>;
  append_ids(batch, sizes);
}

void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream) {
  add_seeds_kernel<<<grid_for(seeds.count), kBlockThreads, 0, as_stream(stream)>>>(
      type.to_internal, type.num_nodes, seeds.ids, seeds.count, first_tree, nodes, seed_rank,
      reinterpret_cast<unsigned long long*>(first_bad));
  PG_LAUNCH_CHECK("add_seeds_kernel");
}

void reindex_cuda(const NodeList& nodes, uintptr_t stream) {
  reindex_kernel<<<grid_for(nodes.count), kBlockThreads, 0, as_stream(stream)>>>(nodes);
  PG_LAUNCH_CHECK("reindex_kernel");
}

}  // namespace peergraph
