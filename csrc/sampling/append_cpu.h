// Append unique (WholeGraph III-C2) on the CPU: new sources get the next rows in order of first
// appearance, by one thread in one pass, or by several as on the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workers.h"
#include "sampling/hop.h"

namespace peergraph {

/// In turn: appends the new sources of targets [begin, end) and replaces sources by rows, so that
/// the index is looked up once an edge.
void append_in_turn(const Hop& hop, NodeList& nodes, int64_t begin, int64_t end);

/// By several threads, after the slots of all targets were claimed (claim_slots); replaces sources
/// by rows. It cuts the targets into `pieces`, a worker for
/// each.
void append_claimed(const Hop& hop, NodeList& nodes, int64_t pieces, Workers& workers);

/// Claims the sources of targets [begin, end) for their first slots; several threads at once may.
void claim_slots(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end);

}  // namespace peergraph
