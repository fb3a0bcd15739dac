// Kernels that write the result of a sample.
#pragma once

#include <cstdint>

#include "sampling/khop/khop.h"

namespace peergraph {

/// Writes the edges of a hop, whose slots hold rows, to the result. Drops edges beyond
/// `out.capacity`.
void write_edges_cuda(const Hop& hop, const EdgeOutput& out, uintptr_t stream);

/// Writes the user ids of nodes. Padding gets -1; or, with `valid_padding`, the id of the node in
/// row 0, and 0 where that is padding, too.
void write_nodes_cuda(const NodeTypeSpec& type, const NodeList& nodes, bool valid_padding,
                      const NodesResult& out, uintptr_t stream);

}  // namespace peergraph
