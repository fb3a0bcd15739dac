#include "common/cuda_check.cuh"
#include "sampling/common/write_edge.cuh"
#include "sampling/weighted_temporal/choose.cuh"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

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
  Choice choice;

  template <typename Team>
  __device__ void operator()(const Team& team, const TeamScratch&, const CscView& csc,
                             const Hop& hop, int64_t t) const {
    const int64_t admitted = count_admitted(team, candidates_of(csc, choice, hop, t));
    if (team.rank() == 0) hop.offsets[t] = choice.edges_of(hop.fanout, admitted);
  }
};

struct Choosing {
  Choice choice;
  NodeIndex sources;

  template <typename Team>
  __device__ void operator()(const Team& team, const TeamScratch& scratch, const CscView& csc,
                             const Hop& hop, int64_t t) const {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t admitted = count_admitted(team, candidates);
    const int64_t count = choice.edges_of(hop.fanout, admitted);
    if (team.rank() == 0) leave_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      emit_edge(csc, hop, sources, candidates.list, t, first + i, pick);
    };
    if (count > 0 && choice.replace && hop.fanout >= 0 && choice.last)
      draw_among_last(team, scratch, candidates, count, admitted, emit);
    else if (count > 0 && choice.replace && hop.fanout >= 0)
      with_replacement(team, scratch, candidates, count, emit);
    else if (count > 0) {
      const PickSlots picks{hop.sources, hop.index_bytes, first, hop.slots - first};
      without_replacement(team, scratch, candidates, count, admitted,
                          [&](int64_t i, int64_t pick) { picks.set(i, pick); });
      team.sync();
      if (choice.timed() && count <= picks.room)
        sort_by_time(team, scratch, candidates, picks, count);
      for (int64_t i = team.rank(); i < count && i < picks.room; i += Team::kThreads)
        emit(i, picks.get(i));
    }
    for (int64_t i = count + team.rank(); i < hop.stride; i += Team::kThreads)
      store_id(hop.sources, hop.index_bytes, first + i, -1);
  }
};

}  // namespace

void count_choices_cuda(const CscView& csc, const Choice& choice, const Hop& hop,
                        uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  PG_CUDA_CHECK(cudaMemsetAsync(hop.offsets + hop.num_targets, 0, sizeof(int64_t), stream));
  launch_each_target(csc, hop, Counting{choice}, stream);
}

void choose_neighbors_cuda(const CscView& csc, const Choice& choice, const Hop& hop,
                           const NodeIndex& sources, uintptr_t stream_address) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (choice.replace && hop.fanout >= 0 && !choice.weighted() && !choice.timed()) {
    draw_any<<<grid_for(hop.num_targets * hop.fanout), kBlockThreads, 0, stream>>>(csc, choice, hop,
                                                                                   sources);
    PG_LAUNCH_CHECK("draw_any");
  } else {
    launch_each_target(csc, hop, Choosing{choice, sources}, stream);
  }
}

}  // namespace peergraph
