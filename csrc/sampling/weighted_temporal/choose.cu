#include "common/cuda_check.cuh"
#include "sampling/weighted_temporal/choose.cuh"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

/// Draws with replacement, without weights or times: one thread for each draw.
template <typename Hops>
__global__ void __launch_bounds__(kBlockThreads)
    draw_with_replacement_kernel(const __grid_constant__ Hops hops) {
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const auto& [csc, choice] = hops.relation(part);
  const int64_t draws = hop.num_targets * hop.fanout;
  for (int64_t at = part.thread(); at < draws; at += part.threads()) {
    const int64_t t = at / hop.fanout, i = at - t * hop.fanout;
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t degree = candidates.list.degree;
    const int64_t slot = hop.first_slot(t) + i;
    if (i == 0) store_count(hop, t, choice.edges_of(hop.fanout, degree));
    if (degree > 0)
      write_edge(csc, hop, part.sources.index, candidates.list, t, slot,
                 candidates.pick_below(static_cast<uint64_t>(degree), i));
    else if (hop.stride > 0)
      store_id(hop.sources, hop.index_bytes, slot, -1);
  }
}

template <typename Group>
__device__ int64_t count_admitted(const Group& group, const Candidates& candidates) {
  if (candidates.choice.admits_all()) return candidates.list.degree;
  uint64_t admitted = 0;
  for (int64_t i = group.thread_rank(); i < candidates.list.degree; i += Group::kThreads)
    admitted += candidates.admits(i) ? 1 : 0;
  return static_cast<int64_t>(group.reduce_sum(admitted));
}

struct Counting {
  template <typename Group>
  __device__ void operator()(const Group& group, const SharedScratch&, const RelationView& relation,
                             const Hop& hop, const NodeIndex&, int64_t t) const {
    const auto& [csc, choice] = relation;
    const int64_t admitted = count_admitted(group, candidates_of(csc, choice, hop, t));
    if (group.thread_rank() == 0) hop.offsets[t] = choice.edges_of(hop.fanout, admitted);
  }
};

struct Choosing {
  template <typename Group>
  __device__ void operator()(const Group& group, const SharedScratch& scratch,
                             const RelationView& relation, const Hop& hop, const NodeIndex& sources,
                             int64_t t) const {
    const CscView& csc = relation.csc;
    const Choice& choice = relation.choice;
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

/// Whether the degree of a target alone determines its draws.
bool draws_by_degree(const Hop& hop, const Choice& choice) {
  const bool untimed = !choice.timed() || hop.parts != nullptr;
  return choice.replace && hop.fanout >= 0 && !choice.weighted() && untimed;
}

}  // namespace

void count_choices_cuda(const HopBatch& batch) {
  launch_each_target(batch, Counting{}, [](const Hop& hop, const Choice& choice) {
    return !draws_uniformly(hop, choice);
  });
}

void choose_neighbors_cuda(const HopBatch& batch) {
  const auto draws = [](const Hop& hop, const RelationView& relation) -> int64_t {
    return draws_by_degree(hop, relation.choice) ? grid_for(hop.num_targets * hop.fanout) : 0;
  };
  launch_for<OneHopAndRelation>(batch, draws, [&](const auto& hops, unsigned blocks, size_t) {
    draw_with_replacement_kernel<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops);
    PG_LAUNCH_CHECK("draw_with_replacement_kernel");
  });
  launch_each_target(batch, Choosing{}, [](const Hop& hop, const Choice& choice) {
    return !draws_uniformly(hop, choice) && !draws_by_degree(hop, choice);
  });
}

}  // namespace peergraph
