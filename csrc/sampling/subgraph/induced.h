// The induced subgraph: all edges whose two ends are sampled nodes; in a disjoint sample, nodes
// of the same tree. The edges of a relation are sampled as one hop that expands all nodes and
// takes every sampled neighbour (in temporal samples, none later than the seed).
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

/// Writes offsets[t] = number of induced edges of target t, for targets [begin, end).
void count_induced_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                       const NodeIndex& sources, int64_t begin, int64_t end);

/// Fills dense slots with rows and edge ids, in order of the lists.
void induce_cpu(const CscView& csc, const Choice& choice, const Hop& hop, const NodeIndex& sources,
                int64_t begin, int64_t end);

/// Writes offsets[t] = number of induced edges of target t.
void count_induced_cuda(const HopBatch& batch);

/// Fills dense slots with rows, edge ids and owners, in order of the lists.
void induce_cuda(const HopBatch& batch);

}  // namespace peergraph
