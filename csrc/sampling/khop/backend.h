// The CPU and the CUDA backend of k-hop sampling.
#pragma once

#include <cstdint>
#include <memory>

#include "sampling/khop/khop.h"

namespace peergraph {

std::unique_ptr<Backend> make_cpu_backend(int num_threads);

/// Works on `stream` of `device`. The host waits for the device once per hop and relation, and
/// once more if the number of edges is needed in advance.
///
/// mailbox: 4 words of pinned host memory for sizes, used by this sample alone until it ends.
std::unique_ptr<Backend> make_cuda_backend(int device, uintptr_t stream, int64_t* mailbox,
                                           Arena& arena);

}  // namespace peergraph
