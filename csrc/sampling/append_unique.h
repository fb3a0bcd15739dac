// Append unique (WholeGraph III-C2) on the GPU: new sources get the next rows in order of first
// appearance. No sort: the index holds every new node's first slot, and an ordered selection of the
// slots that are somebody's first numbers them.
#pragma once

#include <cstdint>

#include "sampling/khop.h"

namespace peergraph {

/// Bytes of scratch for append_unique_cuda.
int64_t append_unique_scratch(const Hop& hop, const NodeList& nodes, uintptr_t stream);

/// Appends the hop's new sources to `nodes` (whose count stays: the host does not know it yet) and
/// puts their rows into the index. Scans offsets if the slots are reserved ones. Afterwards
/// offsets[num_targets] is the number of edges, offsets[num_targets + 1] that of new nodes.
void append_unique_cuda(const Hop& hop, const NodeList& nodes, void* scratch, int64_t scratch_bytes,
                        uintptr_t stream);

/// Replaces counts by their exclusive sums, in place: offsets[0 .. num_targets].
int64_t scan_offsets_scratch(const Hop& hop, uintptr_t stream);
void scan_offsets_cuda(const Hop& hop, void* scratch, int64_t scratch_bytes, uintptr_t stream);

/// Puts seeds into `nodes` at its end and into the index. *first_bad becomes the least
/// seed_rank + i of a seed i that is no node, if less than it was; such a seed counts as node 0.
void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream);

/// Puts all nodes into an empty hash table.
void reindex_cuda(const NodeList& nodes, uintptr_t stream);

/// Writes the edges of a hop to their place, with rows for sources. Leaves out what there is no
/// room for.
void write_edges_cuda(const Hop& hop, const NodeIndex& sources, const EdgeOutput& out,
                      uintptr_t stream);

/// Writes the users' ids (-1 for padding), and takes the nodes out of the direct map.
void write_nodes_cuda(const NodeTypeSpec& type, const NodeList& nodes, const NodesResult& out,
                      uintptr_t stream);

}  // namespace peergraph
