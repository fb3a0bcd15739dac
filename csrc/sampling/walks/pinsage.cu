#include <algorithm>

#include "common/cuda_check.cuh"
#include "sampling/append_unique/node_index.h"
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
  uint32_t* first = nullptr;  // [cells] position of the first visit

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

/// Counts the visits of one target and replaces each key by a number that ascends by falling
/// count, and for equal counts by first visit; kNoVisit comes last.
__device__ void rank_by_block(const int64_t* nodes, int64_t count, const VisitTable& table) {
  uint64_t* keys = table.index.keys;
  const auto cells = static_cast<int64_t>(table.index.mask + 1);
  for (int64_t c = threadIdx.x; c < cells; c += blockDim.x) {
    keys[c] = NodeIndex::kEmpty;
    table.index.values[c] = 0;
    table.first[c] = 0xFFFFFFFFu;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    if (nodes[i] < 0) continue;
    uint32_t* visits = find_or_insert(table.index, 0, nodes[i]);
    atomicAdd(visits, 1u);
    atomicMin(table.first + (visits - table.index.values), static_cast<uint32_t>(i));
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
    top_visits_kernel(const Visits visits, int64_t cells, char* scratch) {
  extern __shared__ uint64_t shared[];
  void* memory = scratch == nullptr ? static_cast<void*>(shared)
                                    : scratch + blockIdx.x * VisitTable::bytes(cells);
  const VisitTable table = VisitTable::at(memory, cells);
  for (int64_t t = blockIdx.x; t < visits.targets; t += gridDim.x) {
    const int64_t* nodes = visits.nodes + t * visits.per_target;
    rank_by_block(nodes, visits.per_target, table);
    for (int64_t i = threadIdx.x; i < visits.keep; i += blockDim.x) {
      const uint64_t rank = i < cells ? table.index.keys[i] : kNoVisit;
      const bool any = rank != kNoVisit;
      const int64_t at = t * visits.keep + i;
      visits.top_nodes[at] = any ? nodes[static_cast<uint32_t>(rank)] : -1;
      visits.top_counts[at] = any ? static_cast<int32_t>(~static_cast<uint32_t>(rank >> 32)) : 0;
    }
    __syncthreads();  // before the next target uses the table
  }
}

}  // namespace

void top_visits_cuda(const Visits& visits, const Allocate& allocate, int device, uintptr_t stream) {
  if (visits.targets == 0 || visits.keep == 0) return;
  const DeviceGuard guard(device);
  int64_t cells = 2;
  while (cells < 2 * visits.per_target) cells *= 2;
  const int64_t bytes = VisitTable::bytes(cells);
  const auto threads = static_cast<unsigned>(
      std::clamp<int64_t>(visits.per_target, kWarpSize, kBlockThreads) / kWarpSize * kWarpSize);
  int64_t blocks = std::min<int64_t>(visits.targets, 1 << 20), shared_bytes = bytes;
  char* scratch = nullptr;
  if (cells > kSharedCells) {
    blocks = std::clamp<int64_t>(kMaxScratchBytes / bytes, 1, blocks);
    shared_bytes = 0;
    scratch = static_cast<char*>(allocate(blocks * bytes));
  }
  top_visits_kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(shared_bytes),
                      reinterpret_cast<cudaStream_t>(stream)>>>(visits, cells, scratch);
  PG_LAUNCH_CHECK("top_visits_kernel");
}

}  // namespace peergraph
