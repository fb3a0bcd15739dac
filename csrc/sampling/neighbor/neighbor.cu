// Kernels that sample the neighbours of a hop's targets by WholeGraph's Algorithm 1, which
// without_replacement.cuh explains.
#include <algorithm>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "common/warp.cuh"
#include "sampling/common/hop.h"
#include "sampling/common/thread_group.cuh"
#include "sampling/neighbor/neighbor.h"
#include "sampling/neighbor/without_replacement.cuh"

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

/// Bytes of the memory of `capacity` draws.
constexpr int64_t draw_bytes(int64_t capacity) {
  return capacity * static_cast<int64_t>(sizeof(uint64_t) + sizeof(int));
}

__device__ SortedDraws draws_at(void* memory, int bits) {
  auto* const keys = static_cast<uint64_t*>(memory);
  return {keys, reinterpret_cast<int*>(keys + (int64_t{1} << bits)), bits};
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
  const int64_t scratch_bytes = draw_bytes(int64_t{1} << draw_bits);
  void* memory = scratch == nullptr ? static_cast<void*>(shared)
                                    : scratch + static_cast<int64_t>(blockIdx.x) * scratch_bytes;
  const SortedDraws draws = draws_at(memory, draw_bits);
  const WholeBlock group;
  for (int64_t t = blockIdx.x; t < hop.num_targets; t += gridDim.x) {
    const Neighbors list = hop.neighbors(csc, t);
    const int64_t count = hop.edges_of(list.degree);
    if (threadIdx.x == 0) store_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      write_edge(csc, hop, sources, list, t, first + i, pick);
    };
    if (count < list.degree) {
      draws.make(group, hop.random, list.degree, count, hop.position(t));
      for (int64_t k = threadIdx.x; k < count; k += blockDim.x)
        emit(draws.draw(k), draws.pick(k, list.degree));
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
  const int draw_bits = SortedDraws::bits_for(hop.fanout);
  const int64_t capacity = int64_t{1} << draw_bits;
  const int64_t bytes = draw_bytes(capacity);
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
