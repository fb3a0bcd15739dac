// How work of one thread on a GPU meets a CUDA graph that another thread captures.
#pragma once

namespace peergraph {

/// Sets the calling thread's capture mode to cudaStreamCaptureModeThreadLocal: the thread may then
/// call what CUDA forbids to all threads while one of them captures a graph (allocating memory,
/// querying events), and does not invalidate that capture by it.
void use_thread_local_capture_mode();

}  // namespace peergraph
