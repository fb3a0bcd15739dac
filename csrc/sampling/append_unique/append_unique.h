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

/// In turn: appends the new sources of targets [begin, end) and replaces sources by rows, so that
/// the index is looked up once an edge.
void append_in_turn(const Hop& hop, NodeList& nodes, int64_t begin, int64_t end);

/// By several threads, after the slots of all targets were claimed (claim_slots); replaces sources
/// by rows. It cuts the targets into `pieces`, a worker for
/// each.
void append_claimed(const Hop& hop, NodeList& nodes, int64_t pieces, Workers& workers);

/// Claims the sources of targets [begin, end) for their first slots; several threads at once may.
void claim_slots(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end);

/// Appends the hop's new sources to `nodes` (whose count stays: the host does not know it yet), and
/// puts their rows into the index where a later hop looks for them. Scans offsets if the slots are
/// reserved ones. Afterwards offsets[num_targets] is the number of edges, offsets[num_targets + 1]
/// that of new nodes, and slots hold rows, or -2 - (the slot of the same node that does).
void append_unique_cuda(const Hop& hop, const NodeList& nodes, Arena& arena, uintptr_t stream);

/// Replaces counts by their exclusive sums, in place: offsets[0 .. num_targets].
void scan_offsets_cuda(const Hop& hop, Arena& arena, uintptr_t stream);

/// Puts seeds into `nodes` at its end and into the index. *first_bad becomes the least
/// seed_rank + i of a seed i that is no node, if less than it was; such a seed counts as node 0.
void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream);

/// Puts all nodes into an index that holds none.
void reindex_cuda(const NodeList& nodes, uintptr_t stream);

}  // namespace peergraph
