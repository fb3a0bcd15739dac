// Kernels that write the result of a sample.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/common/hop_batch.h"
#include "sampling/khop/khop.h"

namespace peergraph {

/// Writes the edges of hops, whose slots hold rows, each to its output. Drops edges beyond the
/// output's capacity.
void write_edges_cuda(const HopBatch& batch, const std::vector<EdgeOutput>& outputs);

/// Writes the user ids of nodes of several types. Padding gets -1; or, with `valid_padding`, the id
/// of the node in row 0, and 0 where that is padding, too.
void write_nodes_cuda(const std::vector<NodesWrite>& writes, bool valid_padding, Arena& arena,
                      uintptr_t stream);

}  // namespace peergraph
