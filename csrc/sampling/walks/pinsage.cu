#include <algorithm>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "sampling/common/thread_group.cuh"
#include "sampling/walks/pinsage.h"

namespace peergraph {
namespace {

constexpr int64_t kSharedCells = 2048;  // largest table in shared memory
constexpr int64_t kMaxScratchBytes = int64_t{256} << 20;
constexpr uint64_t kNoVisit = ~uint64_t{0};

/// The hash table of a block: open addressing, at most half full.
struct VisitTable {
  NodeIndex index;            // [cells] keys, and the counts as values
  uint32_t* first = nullptr;  // [cells] number of the first visit

  static constexpr int64_t bytes(int64_t cells) {
    return cells * static_cast<int64_t>(sizeof(uint64_t) + 2 * sizeof(uint32_t));
  }

  __device__ static VisitTable at(void* memory, int64_t cells) {
    VisitTable table;
    table.index.keys = static_cast<uint64_t*>(memory);
    table.index.values = reinterpret_cast<uint32_t*>(table.index.keys + cells);
    table.index.mask = static_cast<uint64_t>(cells - 1);
    table.first = table.index.values + cells;
    return table;
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    start_walks_kernel(const int64_t* targets, int64_t walks_per_target, const Walks walks) {
  for (int64_t w = global_thread(); w < walks.count; w += grid_threads())
    walks.nodes[w * (walks.length + 1)] = targets[w / walks_per_target];
}

/// Counts the visits of one target and replaces each key by a number that ascends by falling
/// count, and for equal counts by first visit; kNoVisit comes last.
__device__ void rank_by_block(const Visits& visits, int64_t target, const VisitTable& table) {
  uint64_t* keys = table.index.keys;
  const auto cells = static_cast<int64_t>(table.index.mask + 1);
  for (int64_t c = threadIdx.x; c < cells; c += blockDim.x) {
    keys[c] = NodeIndex::kEmpty;
    table.index.values[c] = 0;
    table.first[c] = 0xFFFFFFFFu;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < visits.per_target; i += blockDim.x) {
    const int64_t node = visits.node(target, i);
    if (node < 0) continue;
    uint32_t* count = find_or_insert(table.index, 0, node);
    atomicAdd(count, 1u);
    atomicMin(table.first + (count - table.index.values), i);
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < cells; c += blockDim.x) {
    if (keys[c] == NodeIndex::kEmpty)
      keys[c] = kNoVisit;
    else
      keys[c] = (static_cast<uint64_t>(~table.index.values[c]) << 32) | table.first[c];
  }
  sort_keys(WholeBlock{}, keys, cells);
}

__global__ void __launch_bounds__(kBlockThreads)
    top_visits_kernel(const __grid_constant__ Visits visits, const __grid_constant__ Hop hop,
                      const __grid_constant__ NodeIndex sources, int64_t cells, char* scratch) {
  extern __shared__ uint64_t shared[];
  void* memory = scratch == nullptr ? static_cast<void*>(shared)
                                    : scratch + blockIdx.x * VisitTable::bytes(cells);
  const VisitTable table = VisitTable::at(memory, cells);
  const uint64_t* const ranks = table.index.keys;
  for (int64_t t = blockIdx.x; t < hop.num_targets; t += gridDim.x) {
    rank_by_block(visits, t, table);
    // The ranks are sorted: a target has as many neighbours as there are ranks of visits.
    const auto has_neighbor = [&](int64_t i) {
      return i < hop.stride && i < cells && ranks[i] != kNoVisit;
    };
    for (int64_t i = threadIdx.x; i < hop.stride; i += blockDim.x) {
      const int64_t slot = t * hop.stride + i;
      int64_t node = -1;
      if (has_neighbor(i)) {
        node = visits.node(t, static_cast<uint32_t>(ranks[i]));
        hop.edge_ids[slot] = static_cast<uint32_t>(~static_cast<uint32_t>(ranks[i] >> 32));
        claim(sources, 0, node, sources.claim_word(slot));
        if (!has_neighbor(i + 1)) store_count(hop, t, i + 1);
      } else if (i == 0) {
        store_count(hop, t, 0);
      }
      store_id(hop.sources, hop.index_bytes, slot, node);
    }
    __syncthreads();  // before the next target uses the table
  }
}

}  // namespace

void find_most_visited_cuda(const VisitChoice& choice, const Hop& hop, const NodeIndex& sources,
                            Arena& arena, int device, uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  const int64_t count = checked_product(hop.num_targets, choice.num_walks);
  const int64_t num_nodes = checked_product(count, choice.steps() + 1);
  auto* const nodes = static_cast<int64_t*>(arena.take(num_nodes * sizeof(int64_t)));
  auto* const positions = static_cast<int64_t*>(arena.take(count * sizeof(int64_t)));
  const Walks walks = walks_of(choice, hop, nodes, positions);
  start_walks_kernel<<<grid_for(count), kBlockThreads, 0, stream>>>(hop.targets, choice.num_walks,
                                                                    walks);
  PG_LAUNCH_CHECK("start_walks_kernel");
  take_walks(choice, walks, [&](const CscView& csc, const Walks& part) {
    random_walk_cuda(csc, part, device, stream_address);
  });
  const Visits visits = visits_of(choice, nodes);
  int64_t cells = 2;
  while (cells < 2 * choice.visits()) cells *= 2;
  const int64_t bytes = VisitTable::bytes(cells);
  const auto threads = static_cast<unsigned>(
      std::clamp<int64_t>(choice.visits(), kWarpSize, kBlockThreads) / kWarpSize * kWarpSize);
  int64_t blocks = std::min<int64_t>(hop.num_targets, 1 << 20), shared_bytes = bytes;
  char* scratch = nullptr;
  if (cells > kSharedCells) {
    blocks = std::clamp<int64_t>(kMaxScratchBytes / bytes, 1, blocks);
    shared_bytes = 0;
    scratch = static_cast<char*>(arena.take(blocks * bytes));
  }
  top_visits_kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(shared_bytes),
                      stream>>>(visits, hop, sources, cells, scratch);
  PG_LAUNCH_CHECK("top_visits_kernel");
}

}  // namespace peergraph
