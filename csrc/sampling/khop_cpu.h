// The CPU backend of k-hop sampling.
#pragma once

#include <memory>

#include "sampling/khop.h"

namespace peergraph {

std::unique_ptr<Backend> make_cpu_backend(int num_threads);

}  // namespace peergraph
