#include "sampling/subgraph/induced.h"

#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

/// Calls emit(position in the list, row) for every induced edge of a target.
template <typename Emit>
void for_each_edge(const Candidates& candidates, const NodeIndex& sources, int64_t tree,
                   const Emit& emit) {
  const Neighbors& list = candidates.list;
  for (int64_t i = 0; i < list.degree; ++i) {
    const uint32_t row =
        sources.look_up(tree, load_id(list.indices, candidates.csc.index_bytes, i));
    if (sources.is_row(row) && candidates.admits(i)) emit(i, row);
  }
}

}  // namespace

void count_induced_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                       const NodeIndex& sources, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    int64_t count = 0;
    for_each_edge(candidates_of(csc, choice, hop, t), sources, hop.tree(t),
                  [&](int64_t, uint32_t) { ++count; });
    hop.offsets[t] = count;
  }
}

void induce_cpu(const CscView& csc, const Choice& choice, const Hop& hop, const NodeIndex& sources,
                int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    int64_t slot = hop.offsets[t];
    for_each_edge(candidates, sources, hop.tree(t), [&](int64_t i, uint32_t row) {
      store_id(hop.sources, hop.index_bytes, slot, row);
      if (hop.edge_ids != nullptr) hop.edge_ids[slot] = csc.edge_id(candidates.list.edge_begin + i);
      ++slot;
    });
  }
}

}  // namespace peergraph
