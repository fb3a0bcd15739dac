// What a sample hands over, written on the GPU.
#pragma once

#include <cstdint>

#include "sampling/khop/khop.h"

namespace peergraph {

/// Writes the edges of a hop, whose slots hold rows, to their place. Leaves out what there is no
/// room for.
void write_edges_cuda(const Hop& hop, const EdgeOutput& out, uintptr_t stream);

/// Writes the users' ids, -1 for padding.
void write_nodes_cuda(const NodeTypeSpec& type, const NodeList& nodes, const NodesResult& out,
                      uintptr_t stream);

}  // namespace peergraph
