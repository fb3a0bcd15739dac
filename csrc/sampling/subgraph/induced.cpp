#include "sampling/subgraph/induced.h"

#include "common/vectors.h"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

// Neighbours between a prefetch of a node's word and its read.
constexpr int64_t kNodesAhead = 16;

}  // namespace

void find_induced_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                      const NodeIndex& sources, int64_t begin, int64_t end, InducedEdges& edges) {
  for (int64_t t = begin; t < end; ++t) {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const Neighbors& list = candidates.list;
    const size_t before = edges.rows.size();
    for (int64_t i = 0; i < list.degree; ++i) {
      if (sources.direct != nullptr && i + kNodesAhead < list.degree)
        prefetch_far(sources.direct + load_id(list.indices, csc.index_bytes, i + kNodesAhead));
      const int64_t node = load_id(list.indices, csc.index_bytes, i);
      const uint32_t row = sources.look_up(hop.tree(t), node);
      if (!sources.is_row(row) || !candidates.admits(i)) continue;
      edges.rows.push_back(row);
      edges.positions.push_back(list.edge_begin + i);
    }
    hop.offsets[t] = static_cast<int64_t>(edges.rows.size() - before);
  }
}

void write_induced_cpu(const CscView& csc, const Hop& hop, int64_t begin,
                       const InducedEdges& edges) {
  const int64_t first = hop.offsets[begin];
  const auto count = static_cast<int64_t>(edges.rows.size());
  for (int64_t i = 0; i < count; ++i)
    store_id(hop.sources, hop.index_bytes, first + i, edges.rows[i]);
  if (hop.edge_ids == nullptr) return;
  for (int64_t i = 0; i < count; ++i) hop.edge_ids[first + i] = csc.edge_id(edges.positions[i]);
}

}  // namespace peergraph
