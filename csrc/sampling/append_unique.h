// Append unique (WholeGraph III-C2) on the GPU: new sources get the next rows in order of first
// appearance. No sort: the index holds every new node's first slot, and a count of the slots that
// are somebody's first numbers them.
//
// The index is read at random, once a slot; from then on slots hold a row, or point to the slot
// that does. So edges are written without it, and it is told rows only where they are looked for.
#pragma once

#include <cstdint>

#include "sampling/khop.h"

namespace peergraph {

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
