#include <algorithm>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "common/warp.cuh"
#include "sampling/ppr/forward_push.h"
#include "sampling/ppr/push_table.cuh"

namespace peergraph {
namespace {

constexpr int kThreads = 1024;
constexpr int64_t kLongList = 512;  // longer lists are read by the whole block
constexpr int64_t kReservedShared = 1024;
constexpr int64_t kMaxScratchBytes = int64_t{256} << 20;

/// Adds shares to the neighbours of the nodes that are due.
__device__ void spread(const CscView& csc, const ForwardPush& push, const PushTable& table, int now,
                       uint32_t num_due) {
  const auto add = [&](const Neighbors& list, int64_t e, uint64_t share) {
    table.add(load_id(list.indices, csc.index_bytes, e), share, push.epsilon, now ^ 1);
  };
  const auto list_of = [&](uint32_t i) {
    return csc.neighbors(static_cast<int64_t>(table.nodes[table.due(now)[i]]));
  };
  for (uint32_t i = warp_in_block(); i < num_due; i += blockDim.x / kWarpSize) {
    const uint64_t share = table.shares[i];
    if (share == 0) continue;
    const Neighbors list = list_of(i);
    if (list.degree > kLongList) {
      uint32_t place = 0;
      if (lane_id() == 0) place = atomicAdd(&table.counts->long_lists, 1u);
      place = __shfl_sync(kFullMask, place, 0);
      if (place < kMostLongLists) {
        if (lane_id() == 0) table.counts->long_list[place] = i;
        continue;
      }
    }
    for (int64_t e = lane_id(); e < list.degree; e += kWarpSize) add(list, e, share);
  }
  __syncthreads();
  const uint32_t long_lists = min(table.counts->long_lists, uint32_t{kMostLongLists});
  for (uint32_t l = 0; l < long_lists; ++l) {
    const uint32_t i = table.counts->long_list[l];
    const Neighbors list = list_of(i);
    for (int64_t e = threadIdx.x; e < list.degree; e += blockDim.x) add(list, e, table.shares[i]);
  }
  __syncthreads();
}

/// Takes the residuals of the nodes that are due.
__device__ void take(const ForwardPush& push, const PushTable& table, int now, uint32_t num_due) {
  for (uint32_t i = threadIdx.x; i < num_due; i += blockDim.x) {
    const uint32_t cell = table.due(now)[i];
    const Push split = push_of(table.residuals[cell], table.degrees[cell], push.alpha);
    if (table.estimates[cell] == 0) table.append(table.pushed, &table.counts->pushed, cell);
    table.residuals[cell] = split.rest;
    table.estimates[cell] += split.estimate;
    table.shares[i] = split.share;
  }
  if (threadIdx.x == 0) {
    table.counts->due[now ^ 1] = 0;
    table.counts->long_lists = 0;
  }
  __syncthreads();
}

__device__ void begin(const CscView& csc, const ForwardPush& push, const PushTable& table,
                      int64_t node) {
  if (threadIdx.x == 0) {
    PushCounts& counts = *table.counts;
    counts.inserted = counts.pushed = counts.due[1] = counts.long_lists = counts.is_full = 0;
    counts.due[0] = 1;
    const uint32_t cell = table.find_or_insert(node);
    table.degrees[cell] = saturated_degree(csc.degree(node));
    const Push first = push_of_seed(table.degrees[cell], push);
    table.residuals[cell] = first.rest;
    table.estimates[cell] = first.estimate;
    table.shares[0] = first.share;
    table.due(0)[0] = cell;
    table.append(table.pushed, &counts.pushed, cell);
  }
  __syncthreads();
}

/// Pushes until no node is due. Returns whether the table was large enough; the same in all
/// threads.
__device__ bool push_all(const CscView& csc, const ForwardPush& push, const PushTable& table,
                         int64_t node) {
  begin(csc, push, table, node);
  uint32_t num_due = 1, looked_up = 1;
  for (int now = 0; true; now ^= 1) {
    spread(csc, push, table, now, num_due);
    const uint32_t inserted = min(table.counts->inserted, table.sizes.most_nodes);
    for (uint32_t i = looked_up + threadIdx.x; i < inserted; i += blockDim.x) {
      const uint32_t cell = table.inserted[i];
      const auto reached = static_cast<int64_t>(table.nodes[cell]);
      const uint32_t degree = saturated_degree(csc.degree(reached));
      table.degrees[cell] = degree;
      if (table.residuals[cell] >= push_threshold(push.epsilon, degree))
        table.append(table.due(now ^ 1), &table.counts->due[now ^ 1], cell);
    }
    // A thread that finds the table full says so itself, so all threads take the same way.
    if (__syncthreads_or(static_cast<int>(table.counts->is_full)) != 0) return false;
    looked_up = inserted;
    num_due = table.counts->due[now ^ 1];
    if (num_due == 0) return true;
    take(push, table, now ^ 1, num_due);
  }
}

/// Sorts pairs by falling `first`, then by rising `second`. `count` is a power of two.
__device__ void sort_pairs(uint64_t* first, uint64_t* second, int64_t count) {
  for (int64_t size = 2; size <= count; size *= 2) {
    for (int64_t half = size / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int64_t pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
        const int64_t low = 2 * pair - (pair & (half - 1)), high = low + half;
        const uint64_t a = first[low], b = first[high], c = second[low], d = second[high];
        const bool in_order = a != b ? a > b : c <= d;
        if (in_order != ((low & size) == 0)) {
          first[low] = b;
          first[high] = a;
          second[low] = d;
          second[high] = c;
        }
      }
    }
  }
  __syncthreads();
}

/// Writes the result of a seed, and empties the table.
__device__ void write(const ForwardPush& push, const PushTable& table, int64_t seed) {
  const uint32_t count = table.counts->pushed;
  int64_t padded = 1;
  while (padded < count) padded *= 2;
  // The residuals are not needed any more: estimates and user ids are sorted in the first cells.
  uint64_t* ranked = table.residuals;
  uint64_t* users = table.estimates;
  for (int64_t i = threadIdx.x; i < padded; i += blockDim.x)
    ranked[i] = i < count ? table.estimates[table.pushed[i]] : 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < padded; i += blockDim.x)
    users[i] = i < count ? static_cast<uint64_t>(
                               push.to_user(static_cast<int64_t>(table.nodes[table.pushed[i]])))
                         : ~uint64_t{0};
  sort_pairs(ranked, users, padded);
  for (int64_t i = threadIdx.x; i < push.keep; i += blockDim.x) {
    const int64_t at = seed * push.keep + i;
    push.nodes[at] = i < count ? static_cast<int64_t>(users[i]) : -1;
    push.weights[at] =
        i < count ? static_cast<float>(static_cast<double>(ranked[i]) * kResidualUnit) : 0.0f;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < padded; i += blockDim.x) ranked[i] = users[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < table.counts->inserted; i += blockDim.x)
    table.empty_cell(table.inserted[i]);
  __syncthreads();
}

/// Seeds whose search does not fit into shared memory.
struct LargeSearches {
  int64_t* seeds;
  uint32_t* count;
  uint32_t* next;  // the place of the next one that a block takes
};

__global__ void __launch_bounds__(kThreads, 1)
    push_in_shared(const __grid_constant__ CscView csc, const __grid_constant__ ForwardPush push,
                   const PushSizes sizes, const LargeSearches large) {
  extern __shared__ uint64_t shared[];
  __shared__ PushCounts counts;
  const PushTable table(shared, sizes, &counts);
  table.empty_all();
  __syncthreads();
  const int64_t seed = blockIdx.x;
  if (push_all(csc, push, table, push.to_internal(push.seeds[seed])))
    write(push, table, seed);
  else if (threadIdx.x == 0)
    large.seeds[atomicAdd(large.count, 1u)] = seed;
}

__global__ void __launch_bounds__(kThreads, 1)
    push_in_scratch(const __grid_constant__ CscView csc, const __grid_constant__ ForwardPush push,
                    const PushSizes sizes, const LargeSearches large, char* scratch,
                    int64_t scratch_bytes) {
  __shared__ PushCounts counts;
  __shared__ uint32_t place;
  const PushTable table(scratch + blockIdx.x * scratch_bytes, sizes, &counts);
  for (bool is_empty = false; true; is_empty = true) {
    if (threadIdx.x == 0) place = atomicAdd(large.next, 1u);
    __syncthreads();
    if (place >= *large.count) return;
    const int64_t seed = large.seeds[place];
    if (!is_empty) table.empty_all();
    __syncthreads();
    // The sizes are upper bounds for all searches.
    if (!push_all(csc, push, table, push.to_internal(push.seeds[seed]))) __trap();
    write(push, table, seed);
  }
}

/// As many cells as fit into `bytes` of shared memory.
PushSizes sizes_in(int64_t bytes) {
  constexpr int64_t kBytesPerCell = 37;  // with its part of the lists, rounded up
  const int64_t cells = bytes / kBytesPerCell / 64 * 64;
  return {cells, static_cast<uint32_t>(cells * 5 / 6), static_cast<uint32_t>(cells / 4)};
}

}  // namespace

void forward_push_cuda(const CscView& csc, const ForwardPush& push, const Allocate& allocate,
                       int device, uintptr_t stream_address) {
  if (push.num_seeds == 0) return;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  int shared_bytes = 0;
  PG_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const PushSizes small = sizes_in(shared_bytes - kReservedShared);
  const auto most_nodes = static_cast<uint32_t>(push.most_nodes);
  const PushSizes full{(2 * push.most_nodes + 63) / 64 * 64, most_nodes, most_nodes};
  const bool all_fit = most_nodes <= small.most_pushed;

  LargeSearches large{};
  if (!all_fit) {
    large.seeds = static_cast<int64_t*>(allocate(8 * push.num_seeds + 8));
    large.count = reinterpret_cast<uint32_t*>(large.seeds + push.num_seeds);
    large.next = large.count + 1;
    PG_CUDA_CHECK(cudaMemsetAsync(large.count, 0, 8, stream));
  }
  PG_CUDA_CHECK(cudaFuncSetAttribute(push_in_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(small.bytes())));
  push_in_shared<<<static_cast<unsigned>(push.num_seeds), kThreads,
                   static_cast<size_t>(small.bytes()), stream>>>(csc, push, small, large);
  PG_LAUNCH_CHECK("push_in_shared");
  if (all_fit) return;
  const int64_t bytes = (full.bytes() + 255) / 256 * 256;
  const int64_t blocks = std::clamp<int64_t>(kMaxScratchBytes / bytes, 1, push.num_seeds);
  auto* scratch = static_cast<char*>(allocate(blocks * bytes));
  push_in_scratch<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(csc, push, full, large,
                                                                          scratch, bytes);
  PG_LAUNCH_CHECK("push_in_scratch");
}

}  // namespace peergraph
