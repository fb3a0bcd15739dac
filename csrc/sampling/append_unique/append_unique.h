// Append unique (WholeGraph III-C2): new sources get the next rows in order of first appearance.
//
// The CPU appends with one thread in one pass, or with several threads as the GPU does. The GPU
// does not sort: the index holds the first slot of every new node, and a prefix sum over the first
// slots numbers them. Each slot reads the index once, at random; afterwards the slot holds a row,
// or the number of the slot that holds the row. Edges are then written without the index, and the
// index is given rows only where a later hop looks them up.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workers.h"
#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
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

/// Appends the new sources of the hops to their lists of nodes and writes their rows into the index
/// if a later hop looks them up. The `count` of the lists stays the same, as the host does not know
/// the new count yet. Also scans the offsets of a single hop of which the slots are reserved; the
/// slots of several hops are dense, in arrays of the same `index_bytes`, and hops with the same
/// list follow each other, in the order of the relations. Afterwards offsets[num_targets] is the
/// number of edges of a hop; slots hold rows, or -2 - (the slot of the same node that holds the
/// row). For each list, `sizes` gets the number of its new nodes and the number of edges of its
/// first hop.
constexpr int64_t kAppendedWords = 2;
void append_unique_cuda(const HopBatch& batch, int64_t* sizes);

/// Replaces counts by their exclusive sums, in place; offsets[num_offsets] becomes their total.
void scan_offsets_cuda(int64_t* offsets, int64_t num_offsets, Arena& arena, uintptr_t stream);

/// Writes the number of edges of each relation, from scanned counts of the edges of targets. The
/// targets of relation i are from begins[i] to begins[i + 1].
void count_edges_cuda(const int64_t* sums, const std::vector<int64_t>& begins, int64_t* edges,
                      Arena& arena, uintptr_t stream);

/// The memory of the offsets of a hop.
struct HopOffsets {
  int64_t* begin;  // [num_targets + 1]
};

/// Writes the offsets of each hop, which begin at 0. The hops' own offsets are parts of counts that
/// were scanned together.
void write_offsets_cuda(const HopBatch& batch, const std::vector<HopOffsets>& outputs);

/// Appends seeds to `nodes` and inserts them into the index. A seed i that is no node counts as
/// node 0, and lowers *first_bad to seed_rank + i if that is less.
void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream);

/// Inserts all nodes into an empty index.
void reindex_cuda(const NodeList& nodes, uintptr_t stream);

}  // namespace peergraph
