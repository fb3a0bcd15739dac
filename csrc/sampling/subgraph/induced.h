// The induced subgraph of a sample's nodes: all edges with both ends among them. Of a disjoint
// sample, both in the same tree. A relation's edges are sampled as one hop from all nodes, that
// takes every neighbour which is in the sample (and not after the seed's time).
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

/// offsets[t] = edges of target t, for targets [begin, end).
void count_induced_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                       const NodeIndex& sources, int64_t begin, int64_t end);

/// Fills dense slots with rows and edge ids, in order of the lists.
void induce_cpu(const CscView& csc, const Choice& choice, const Hop& hop, const NodeIndex& sources,
                int64_t begin, int64_t end);

/// offsets[t] = edges of target t, 0 behind the last.
void count_induced_cuda(const CscView& csc, const Choice& choice, const Hop& hop,
                        const NodeIndex& sources, uintptr_t stream);

/// Fills dense slots with rows, edge ids and owners, in order of the lists.
void induce_cuda(const CscView& csc, const Choice& choice, const Hop& hop, const NodeIndex& sources,
                 uintptr_t stream);

}  // namespace peergraph
