#include "common/cuda_check.cuh"
#include "sampling/choose.cuh"
#include "sampling/choose.h"
#include "sampling/emit.cuh"

namespace peergraph {
namespace {

constexpr int kWarpsPerBlock = kBlockThreads / kWarpLanes;
constexpr int kWarpKeys = 256;  // longer lists are given to a whole block
constexpr int kBlockKeys = kWarpKeys * kWarpsPerBlock;

static_assert(sizeof(CscView) + sizeof(Choice) + sizeof(Hop) + sizeof(NodeIndex) < 4000,
              "kernel parameters");

/// With replacement, neither weights nor times: a thread for each draw.
__global__ void __launch_bounds__(kBlockThreads)
    draw_any(const __grid_constant__ CscView csc, const __grid_constant__ Choice choice,
             const __grid_constant__ Hop hop, const __grid_constant__ NodeIndex sources) {
  const int64_t draws = hop.num_targets * hop.fanout;
  for (int64_t at = global_thread(); at < draws; at += grid_threads()) {
    const int64_t t = at / hop.fanout, i = at - t * hop.fanout;
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t degree = candidates.list.degree;
    const int64_t slot = hop.first_slot(t) + i;
    if (i == 0) leave_count(hop, t, choice.edges_of(hop.fanout, degree));
    if (degree > 0)
      emit_edge(csc, hop, sources, candidates.list, t, slot,
                candidates.pick_below(static_cast<uint64_t>(degree), i));
    else if (hop.stride > 0)
      store_id(hop.sources, hop.index_bytes, slot, -1);
  }
}

template <typename Team>
__device__ int64_t count_admitted(const Team& team, const Candidates& candidates) {
  if (!candidates.choice.timed()) return candidates.list.degree;
  uint64_t admitted = 0;
  for (int64_t i = team.rank(); i < candidates.list.degree; i += Team::kThreads)
    admitted += candidates.admits(i) ? 1 : 0;
  return static_cast<int64_t>(team.sum(admitted));
}

struct Counting {
  template <typename Team>
  __device__ void operator()(const Team& team, const ChoiceScratch&, const Candidates& candidates,
                             const Hop& hop) const {
    const int64_t admitted = count_admitted(team, candidates);
    if (team.rank() == 0)
      hop.offsets[candidates.position] = candidates.choice.edges_of(hop.fanout, admitted);
  }
};

struct Choosing {
  NodeIndex sources;

  template <typename Team>
  __device__ void operator()(const Team& team, const ChoiceScratch& scratch,
                             const Candidates& candidates, const Hop& hop) const {
    const int64_t t = candidates.position;
    const int64_t admitted = count_admitted(team, candidates);
    const int64_t count = candidates.choice.edges_of(hop.fanout, admitted);
    if (team.rank() == 0) leave_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      emit_edge(candidates.csc, hop, sources, candidates.list, t, first + i, pick);
    };
    if (count > 0 && candidates.choice.replace && hop.fanout >= 0)
      with_replacement(team, scratch, candidates, count, emit);
    else if (count > 0)
      without_replacement(team, scratch, candidates, count, admitted, emit);
    for (int64_t i = count + team.rank(); i < hop.stride; i += Team::kThreads)
      store_id(hop.sources, hop.index_bytes, first + i, -1);
  }
};

/// A warp for each target, the whole block for the long lists.
template <typename Work>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_target(const __grid_constant__ CscView csc, const __grid_constant__ Choice choice,
                    const __grid_constant__ Hop hop, const __grid_constant__ Work work) {
  __shared__ uint64_t keys[kBlockKeys];
  __shared__ uint32_t histograms[kWarpsPerBlock][kDigits];
  __shared__ uint64_t found[kWarpsPerBlock][3];
  __shared__ uint64_t partial[kWarpsPerBlock];
  __shared__ bool is_long[kWarpsPerBlock];
  const int warp = threadIdx.x / kWarpLanes;
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock;
  const int64_t own = block_begin + warp;
  bool own_is_long = false;
  if (own < hop.num_targets) {
    const Candidates candidates = candidates_of(csc, choice, hop, own);
    own_is_long = candidates.list.degree > kWarpKeys;
    if (!own_is_long)
      work(WarpTeam{nullptr},
           ChoiceScratch{keys + warp * kWarpKeys, kWarpKeys, histograms[warp], found[warp]},
           candidates, hop);
  }
  if (threadIdx.x % kWarpLanes == 0) is_long[warp] = own_is_long;
  __syncthreads();
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    if (!is_long[w]) continue;
    work(BlockTeam{partial}, ChoiceScratch{keys, kBlockKeys, histograms[0], found[0]},
         candidates_of(csc, choice, hop, block_begin + w), hop);
    __syncthreads();  // before the next target takes the work space
  }
}

template <typename Work>
void launch(const CscView& csc, const Choice& choice, const Hop& hop, const Work& work,
            cudaStream_t stream) {
  const int64_t blocks = (hop.num_targets + kWarpsPerBlock - 1) / kWarpsPerBlock;
  for_each_target<<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(csc, choice, hop,
                                                                               work);
  PG_LAUNCH_CHECK("for_each_target");
}

}  // namespace

void count_choices_cuda(const CscView& csc, const Choice& choice, const Hop& hop,
                        uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  PG_CUDA_CHECK(cudaMemsetAsync(hop.offsets + hop.num_targets, 0, sizeof(int64_t), stream));
  launch(csc, choice, hop, Counting{}, stream);
}

void choose_neighbors_cuda(const CscView& csc, const Choice& choice, const Hop& hop,
                           const NodeIndex& sources, uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (choice.replace && hop.fanout >= 0 && !choice.weighted() && !choice.timed()) {
    draw_any<<<grid_for(hop.num_targets * hop.fanout), kBlockThreads, 0, stream>>>(csc, choice, hop,
                                                                                   sources);
    PG_LAUNCH_CHECK("draw_any");
  } else {
    launch(csc, choice, hop, Choosing{sources}, stream);
  }
}

}  // namespace peergraph
