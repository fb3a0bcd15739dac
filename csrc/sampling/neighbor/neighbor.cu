// Kernels that sample the neighbours of a hop's targets: WholeGraph's Algorithm 1, sequential
// swap-with-last, computed in parallel.
//
// With N = degree, M = fanout and r[i] the i-th draw: draw i gets r[i] unless an earlier draw had
// the same r; then it gets what the latest such draw j moved there, the element that was at N - 1 -
// j at that time. chain[j] is the latest draw k with r[k] = N - 1 - j (what was there had been
// moved by k from N - 1 - k), or j if there is none; chains are followed by path doubling.
#include <algorithm>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "common/warp.cuh"
#include "sampling/common/hop.h"
#include "sampling/common/thread_group.cuh"
#include "sampling/neighbor/neighbor.h"

namespace peergraph {
namespace {

constexpr int kWarpsPerBlock = kBlockThreads / kWarpSize;
constexpr int64_t kSharedFanout = 2048;  // largest fanout whose work space is in shared memory
constexpr int64_t kMaxScratchBytes = int64_t{256} << 20;
constexpr int64_t kHubDegree = 2048;  // lists longer than this are copied by a whole block

// Kernels read the views in the launch parameters; a local copy would be indexed in local
// memory.
static_assert(sizeof(CscView) + sizeof(Hop) + sizeof(NodeIndex) < 4000, "kernel parameters");

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

__global__ void __launch_bounds__(kBlockThreads)
    count_kernel(const __grid_constant__ CscView csc, const __grid_constant__ Hop hop) {
  for (int64_t t = global_thread(); t <= hop.num_targets; t += grid_threads())
    hop.offsets[t] = t < hop.num_targets ? hop.edges_of(hop.degree(csc, t)) : 0;
}

/// One group of kGroup lanes for each target, and one lane for each draw; for fanouts up to
/// kGroup.
template <int kGroup>
__global__ void __launch_bounds__(kBlockThreads)
    sample_by_lane(const __grid_constant__ CscView csc, const __grid_constant__ Hop hop,
                   const __grid_constant__ NodeIndex sources) {
  __shared__ int chains[kBlockThreads];
  const int i = threadIdx.x % kGroup;
  const int64_t t = global_thread() / kGroup;
  const bool live = t < hop.num_targets;  // no early return: the warp works together below
  Neighbors list{nullptr, 0, 0};
  if (live) list = hop.neighbors(csc, t);
  const int64_t count = hop.edges_of(list.degree);
  const bool drawing = count < list.degree && i < count;
  int64_t pick = i;
  if (__any_sync(kFullMask, drawing)) {
    const int64_t drawn =
        draw_by_lane<kGroup>(hop.random, drawing, list.degree, hop.fanout,
                             drawing ? hop.position(t) : 0, chains + (threadIdx.x - i));
    if (drawing) pick = drawn;
  }
  if (!live) return;
  if (i == 0) store_count(hop, t, count);
  const int64_t slot = hop.first_slot(t) + i;
  if (i < count)
    write_edge(csc, hop, sources, list, t, slot, pick);
  else if (i < hop.stride)
    store_id(hop.sources, hop.index_bytes, slot, -1);
}

/// One block for each target; for larger fanouts. Without `scratch` the work space is shared
/// memory.
__global__ void __launch_bounds__(kBlockThreads)
    sample_by_block(const __grid_constant__ CscView csc, const __grid_constant__ Hop hop,
                    const __grid_constant__ NodeIndex sources, int draw_bits, char* scratch) {
  extern __shared__ uint64_t shared[];
  const int64_t scratch_bytes = BlockScratch::bytes(int64_t{1} << draw_bits);
  void* memory = scratch == nullptr ? static_cast<void*>(shared)
                                    : scratch + static_cast<int64_t>(blockIdx.x) * scratch_bytes;
  const BlockScratch work = BlockScratch::at(memory, draw_bits);
  for (int64_t t = blockIdx.x; t < hop.num_targets; t += gridDim.x) {
    const Neighbors list = hop.neighbors(csc, t);
    const int64_t count = hop.edges_of(list.degree);
    if (threadIdx.x == 0) store_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      write_edge(csc, hop, sources, list, t, first + i, pick);
    };
    if (count < list.degree) {
      draw_by_block(hop.random, list.degree, hop.fanout, hop.position(t), work, emit);
    } else {
      for (int64_t i = threadIdx.x; i < count; i += blockDim.x) emit(i, i);
    }
    for (int64_t i = count + threadIdx.x; i < hop.stride; i += blockDim.x)
      store_id(hop.sources, hop.index_bytes, first + i, -1);
    __syncthreads();  // before the next target uses the work space
  }
}

/// Fanout -1 with dense slots: one warp for each target, the whole block for long lists.
__global__ void __launch_bounds__(kBlockThreads)
    copy_all(const __grid_constant__ CscView csc, const __grid_constant__ Hop hop,
             const __grid_constant__ NodeIndex sources) {
  __shared__ Neighbors lists[kWarpsPerBlock];
  const int warp = warp_in_block(), lane = lane_id();
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock;
  const int64_t own = block_begin + warp;
  Neighbors list{nullptr, 0, 0};
  if (own < hop.num_targets) list = hop.neighbors(csc, own);
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

template <int kGroup>
void launch_by_lane(const CscView& csc, const Hop& hop, const NodeIndex& sources,
                    cudaStream_t stream) {
  const int64_t targets_per_block = kBlockThreads / kGroup;
  const int64_t blocks = (hop.num_targets + targets_per_block - 1) / targets_per_block;
  sample_by_lane<kGroup>
      <<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(csc, hop, sources);
  PG_LAUNCH_CHECK("sample_by_lane");
}

void launch_by_block(const CscView& csc, const Hop& hop, const NodeIndex& sources, Arena& arena,
                     cudaStream_t stream) {
  int draw_bits = 1;
  while ((int64_t{1} << draw_bits) < hop.fanout) ++draw_bits;
  const int64_t capacity = int64_t{1} << draw_bits;
  const int64_t bytes = BlockScratch::bytes(capacity);
  const auto threads =
      static_cast<unsigned>(std::clamp<int64_t>(capacity / 2, kWarpSize, kBlockThreads));
  int64_t blocks = hop.num_targets, shared_bytes = bytes;
  char* scratch = nullptr;
  if (hop.fanout > kSharedFanout) {
    blocks = std::clamp<int64_t>(kMaxScratchBytes / bytes, 1, blocks);
    shared_bytes = 0;
    scratch = static_cast<char*>(arena.take(blocks * bytes));
  }
  sample_by_block<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(shared_bytes),
                    stream>>>(csc, hop, sources, draw_bits, scratch);
  PG_LAUNCH_CHECK("sample_by_block");
}

}  // namespace

void count_neighbors_cuda(const CscView& csc, const Hop& hop, uintptr_t stream) {
  count_kernel<<<grid_for(hop.num_targets + 1), kBlockThreads, 0,
                 reinterpret_cast<cudaStream_t>(stream)>>>(csc, hop);
  PG_LAUNCH_CHECK("count_kernel");
}

void sample_neighbors_cuda(const CscView& csc, const Hop& hop, const NodeIndex& sources,
                           Arena& arena, uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (hop.fanout < 0) {
    const int64_t blocks = (hop.num_targets + kWarpsPerBlock - 1) / kWarpsPerBlock;
    copy_all<<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(csc, hop, sources);
    PG_LAUNCH_CHECK("copy_all");
  } else if (hop.fanout <= 4) {
    launch_by_lane<4>(csc, hop, sources, stream);
  } else if (hop.fanout <= 8) {
    launch_by_lane<8>(csc, hop, sources, stream);
  } else if (hop.fanout <= 16) {
    launch_by_lane<16>(csc, hop, sources, stream);
  } else if (hop.fanout <= kWarpSize) {
    launch_by_lane<32>(csc, hop, sources, stream);
  } else {
    launch_by_block(csc, hop, sources, arena, stream);
  }
}

}  // namespace peergraph
