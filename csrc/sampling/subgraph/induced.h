// The induced subgraph: all edges whose two ends are sampled nodes; in a disjoint sample, nodes
// of the same tree. The edges of a relation are sampled as one hop that expands all nodes and
// takes every sampled neighbour (in temporal samples, none later than the seed).
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

/// The induced edges of some targets, in order of the targets and of their lists.
struct InducedEdges {
  std::vector<uint32_t> rows;      // of the sources
  std::vector<int64_t> positions;  // in the user's CSC
};

/// Adds the edges of targets [begin, end); writes offsets[t] = number of edges of target t.
void find_induced_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                      const NodeIndex& sources, int64_t begin, int64_t end, InducedEdges& edges);

/// Fills the dense slots of targets from `begin` on with rows and edge ids.
void write_induced_cpu(const CscView& csc, const Hop& hop, int64_t begin,
                       const InducedEdges& edges);

/// Writes offsets[t] = number of induced edges of target t.
void count_induced_cuda(const HopBatch& batch);

/// Fills dense slots with rows, edge ids and owners, in order of the lists.
void induce_cuda(const HopBatch& batch);

}  // namespace peergraph
