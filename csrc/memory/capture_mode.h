// Lets a thread work on a GPU while another thread captures a CUDA graph.
#pragma once

namespace peergraph {

/// Sets the calling thread's capture mode to cudaStreamCaptureModeThreadLocal: the thread may then
/// call what CUDA forbids to all threads while one of them captures a graph (allocating memory,
/// querying events), and does not invalidate that capture by it.
void use_thread_local_capture_mode();

}  // namespace peergraph
