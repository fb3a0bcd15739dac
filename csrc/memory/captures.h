// CUDA graphs that another thread captures.
#pragma once

namespace peergraph {

/// From here on the calling thread may do what CUDA forbids all threads while one of them captures
/// a graph (allocate memory, ask for events), and does not break that capture by it.
void stay_outside_captures();

}  // namespace peergraph
