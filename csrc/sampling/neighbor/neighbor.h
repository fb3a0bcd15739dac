// Uniform sampling of the neighbours of a hop's targets without replacement (WholeGraph III-C1).
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
#include "store/csc_view.h"

namespace peergraph {

struct DrawScratch;

/// The order of the edges of a target that draws.
enum class PickOrder { kDraw, kList };

/// Writes offsets[t] = number of edges of target t and lists[t] = its neighbour list, for
/// targets [begin, end).
void count_neighbors_cpu(const CscView& csc, const Hop& hop, int64_t begin, int64_t end,
                         Neighbors* lists);

/// Fills the dense slots of targets [begin, end): sources and, if wanted, the user's edge ids.
/// Every thread has its own scratch.
void sample_neighbors_cpu(const CscView& csc, const Hop& hop, const Neighbors* lists, int64_t begin,
                          int64_t end, DrawScratch& scratch, PickOrder order = PickOrder::kDraw);

/// Writes offsets[t] = number of edges of target t, for the relations that draw uniformly without
/// replacement.
void count_neighbors_cuda(const HopBatch& batch);

/// Fills the slots of these relations' hops, reserved or dense, and claims every new source for its
/// first slot in the index. If slots are reserved, also writes the counts as count_neighbors_cuda
/// does.
void sample_neighbors_cuda(const HopBatch& batch);

}  // namespace peergraph
