// Neighbours of a hop's targets, uniformly without replacement (WholeGraph III-C1).
#pragma once

#include <cstdint>

#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "store/csc_view.h"

namespace peergraph {

struct DrawScratch;

/// offsets[t] = edges of target t, lists[t] = its list, for targets [begin, end).
void count_neighbors_cpu(const CscView& csc, const Hop& hop, int64_t begin, int64_t end,
                         Neighbors* lists);

/// Fills the slots of targets [begin, end) of a hop with dense slots: sources and, when wanted, the
/// user's edge ids. Every thread has a scratch of its own.
void sample_neighbors_cpu(const CscView& csc, const Hop& hop, const Neighbors* lists, int64_t begin,
                          int64_t end, DrawScratch& scratch);

/// offsets[t] = edges of target t, 0 behind the last.
void count_neighbors_cuda(const CscView& csc, const Hop& hop, uintptr_t stream);

/// Fills the slots of a hop, in either layout, and leaves in the index of the sources, for every
/// new one, the first slot that holds it. With reserved slots it also does what
/// count_neighbors_cuda does.
void sample_neighbors_cuda(const CscView& csc, const Hop& hop, const NodeIndex& sources,
                           Arena& arena, uintptr_t stream);

}  // namespace peergraph
