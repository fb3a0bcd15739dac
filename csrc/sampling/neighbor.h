// Neighbours of a hop's targets, uniformly without replacement (WholeGraph III-C1).
#pragma once

#include "sampling/hop.h"
#include "store/csc_view.h"

namespace peergraph {

/// Fills the slots of targets [begin, end) of a hop with dense slots: sources and, when wanted, the
/// user's edge ids.
void sample_neighbors(const CscView& csc, const Hop& hop, int64_t begin, int64_t end);

}  // namespace peergraph
