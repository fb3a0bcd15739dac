// Append unique (WholeGraph III-C2): new sources get the next rows in order of first appearance.
//
// The CPU appends with one thread in one pass, or with several threads as the GPU does. The GPU
// does not sort: the index holds the first slot of every new node, and a prefix sum over the first
// slots numbers them. Each slot reads the index once, at random; afterwards the slot holds a row,
// or the number of the slot that holds the row. Edges are then written without the index, and the
// index is given rows only where a later hop looks them up.
#pragma once

#include <cstdint>

#include "common/workers.h"
#include "sampling/common/hop.h"
#include "sampling/khop/khop.h"

namespace peergraph {

/// With one thread: appends the new sources of targets [begin, end) and replaces sources by
/// rows. Looks up the index once an edge.
void append_in_turn(const Hop& hop, NodeList& nodes, int64_t begin, int64_t end);

/// With several threads, after claim_slots for all targets: appends the new sources and
/// replaces sources by rows. Cuts the targets into `pieces`, one for each worker.
void append_claimed(const Hop& hop, NodeList& nodes, int64_t pieces, Workers& workers);

/// Claims the sources of targets [begin, end) for their first slots. Several threads may call
/// it at once.
void claim_slots(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end);

/// Appends the new sources of the hop to `nodes` and writes their rows into the index if a
/// later hop looks them up. `nodes.count` stays the same, as the host does not know the new
/// count yet. Also scans the offsets if the slots are reserved. Afterwards offsets[num_targets]
/// is the number of edges and offsets[num_targets + 1] the number of new nodes; slots hold
/// rows, or -2 - (the slot of the same node that holds the row).
void append_unique_cuda(const Hop& hop, const NodeList& nodes, Arena& arena, uintptr_t stream);

/// Replaces counts by their exclusive sums, in place: offsets[0 .. num_targets].
void scan_offsets_cuda(const Hop& hop, Arena& arena, uintptr_t stream);

/// Appends seeds to `nodes` and inserts them into the index. A seed i that is no node counts as
/// node 0, and lowers *first_bad to seed_rank + i if that is less.
void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream);

/// Inserts all nodes into an empty index.
void reindex_cuda(const NodeList& nodes, uintptr_t stream);

}  // namespace peergraph
