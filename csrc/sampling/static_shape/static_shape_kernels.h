// The steps of a sample of a fixed shape that other samples do on the host.
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/static_shape/static_shape.h"

namespace peergraph {

constexpr int kMaxSegments = 32;

/// Where the segments of a node type begin, and how many of their rows are no padding.
struct Segments {
  int64_t begin[kMaxSegments + 1] = {};
  int num_segments = 0;
  const int64_t* counts = nullptr;  // [num_segments] on the device
};

/// Puts seeds into the rows 0, 1, ... and into the index; *count becomes their number.
void add_fixed_seeds_cuda(const NodeTypeSpec& type, const FixedSeeds& seeds, int64_t first_tree,
                          const NodeList& nodes, int64_t* count, int device, uintptr_t stream);

/// positions[row] for all rows of the segments: how many rows before it are no padding.
void write_positions_cuda(const Segments& segments, int32_t* positions, uintptr_t stream);

/// After append_unique_cuda: *edges and *found (new nodes of the hop, of all relations so far) are
/// brought up to date and kept within their room, offsets too.
void close_hop_cuda(const Hop& hop, int hop_number, int64_t* edges, int64_t edge_room,
                    int64_t* found, int64_t node_room, int device, uintptr_t stream);

/// Fills the hop's edges from *edges on with padding.
void pad_edges_cuda(const EdgeOutput& out, const int64_t* edges, int64_t target_sink,
                    uintptr_t stream);

/// Takes the nodes out of their direct map.
void forget_nodes_cuda(const NodeList& nodes, uintptr_t stream);

}  // namespace peergraph
