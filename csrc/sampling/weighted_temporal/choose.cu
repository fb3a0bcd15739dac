#include "common/cuda_check.cuh"
#include "sampling/common/hop.h"
#include "sampling/weighted_temporal/choose.cuh"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

static_assert(sizeof(CscView) + sizeof(Choice) + sizeof(Hop) + sizeof(NodeIndex) < 4000,
              "kernel parameters");

/// Draws with replacement, without weights or times: one thread for each draw.
__global__ void __launch_bounds__(kBlockThreads)
    draw_with_replacement_kernel(const __grid_constant__ CscView csc,
                                 const __grid_constant__ Choice choice,
                                 const __grid_constant__ Hop hop,
                                 const __grid_constant__ NodeIndex sources) {
  const int64_t draws = hop.num_targets * hop.fanout;
  for (int64_t at = global_thread(); at < draws; at += grid_threads()) {
    const int64_t t = at / hop.fanout, i = at - t * hop.fanout;
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t degree = candidates.list.degree;
    const int64_t slot = hop.first_slot(t) + i;
    if (i == 0) store_count(hop, t, choice.edges_of(hop.fanout, degree));
    if (degree > 0)
      write_edge(csc, hop, sources, candidates.list, t, slot,
                 candidates.pick_below(static_cast<uint64_t>(degree), i));
    else if (hop.stride > 0)
      store_id(hop.sources, hop.index_bytes, slot, -1);
  }
}

template <typename Group>
__device__ int64_t count_admitted(const Group& group, const Candidates& candidates) {
  if (!candidates.choice.timed()) return candidates.list.degree;
  uint64_t admitted = 0;
  for (int64_t i = group.thread_rank(); i < candidates.list.degree; i += Group::kThreads)
    admitted += candidates.admits(i) ? 1 : 0;
  return static_cast<int64_t>(group.reduce_sum(admitted));
}

struct Counting {
  Choice choice;

  template <typename Group>
  __device__ void operator()(const Group& group, const SharedScratch&, const CscView& csc,
                             const Hop& hop, int64_t t) const {
    const int64_t admitted = count_admitted(group, candidates_of(csc, choice, hop, t));
    if (group.thread_rank() == 0) hop.offsets[t] = choice.edges_of(hop.fanout, admitted);
  }
};

struct Choosing {
  Choice choice;
  NodeIndex sources;

  template <typename Group>
  __device__ void operator()(const Group& group, const SharedScratch& scratch, const CscView& csc,
                             const Hop& hop, int64_t t) const {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t admitted = count_admitted(group, candidates);
    const int64_t count = choice.edges_of(hop.fanout, admitted);
    if (group.thread_rank() == 0) store_count(hop, t, count);
    const int64_t first = hop.first_slot(t);
    const auto emit = [&](int64_t i, int64_t pick) {
      write_edge(csc, hop, sources, candidates.list, t, first + i, pick);
    };
    if (count > 0 && choice.replace && hop.fanout >= 0 && choice.last)
      draw_among_last(group, scratch, candidates, count, admitted, emit);
    else if (count > 0 && choice.replace && hop.fanout >= 0)
      with_replacement(group, scratch, candidates, count, emit);
    else if (count > 0) {
      const PickSlots picks{hop.sources, hop.index_bytes, first, hop.slots - first};
      without_replacement(group, scratch, candidates, count, admitted,
                          [&](int64_t i, int64_t pick) { picks.set(i, pick); });
      group.sync();
      if (choice.timed() && count <= picks.capacity)
        sort_by_time(group, scratch, candidates, picks, count);
      for (int64_t i = group.thread_rank(); i < count && i < picks.capacity; i += Group::kThreads)
        emit(i, picks.get(i));
    }
    for (int64_t i = count + group.thread_rank(); i < hop.stride; i += Group::kThreads)
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
    draw_with_replacement_kernel<<<grid_for(hop.num_targets * hop.fanout), kBlockThreads, 0,
                                   stream>>>(csc, choice, hop, sources);
    PG_LAUNCH_CHECK("draw_with_replacement_kernel");
  } else {
    launch_each_target(csc, hop, Choosing{choice, sources}, stream);
  }
}

}  // namespace peergraph
