// The steps of static-shape sampling that other samples do on the host.
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/static_shape/static_shape.h"

namespace peergraph {

constexpr int kMaxSegments = 32;

/// The segments of the rows of a node type: their begins, and their counts of rows without
/// padding.
struct Segments {
  int64_t begin[kMaxSegments + 1] = {};
  int num_segments = 0;
  const int64_t* counts = nullptr;  // [num_segments] on the device
};

/// Writes seeds to the rows 0, 1, ... and inserts them into the index; *count becomes their
/// number.
void add_padded_seeds_cuda(const NodeTypeSpec& type, const PaddedSeeds& seeds, int64_t first_tree,
                           const NodeList& nodes, int64_t* count, int device, uintptr_t stream);

/// Writes positions[row] for all rows of the segments: the number of rows before it that are no
/// padding.
void write_positions_cuda(const Segments& segments, int32_t* positions, uintptr_t stream);

/// After append_unique_cuda, which has found *new_nodes: updates *edges and *found (the new nodes
/// of the hop, of all relations so far), and clamps them and the offsets to the capacities.
void clamp_hop_counts_cuda(const Hop& hop, const int64_t* new_nodes, int hop_number, int64_t* edges,
                           int64_t edge_capacity, int64_t* found, int64_t node_capacity,
                           bool reported, int device, uintptr_t stream);

/// The last segment of the rows that a type has before a hop.
struct PaddedSegment {
  int64_t begin = 0;
  int64_t end = 0;
  const int64_t* count = nullptr;  // rows without padding, on the device
  int64_t padding_row = 0;         // of the type
};

/// Writes the padding edges of a hop, from *edges on, between the padding rows of both segments,
/// and adds them to the offsets of those in `targets`.
void pad_edges_cuda(const EdgeOutput& out, const int64_t* edges, const Hop& hop,
                    const PaddedSegment& sources, const PaddedSegment& targets, uintptr_t stream);

/// Begins a sample in a direct map: lowers the base, words[num_nodes], by `num_entries`. All words
/// of earlier samples are then greater than those of this one. If the base is too low for that, the
/// map is cleared, and the base is the greatest that has room for the entries.
void lower_base_cuda(uint32_t* words, int64_t num_nodes, uint32_t num_entries, uintptr_t stream);

}  // namespace peergraph
