// The CPU and the CUDA backend of k-hop sampling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "common/launch.h"
#include "sampling/khop/khop.h"

namespace peergraph {

std::unique_ptr<Backend> make_cpu_backend(int num_threads);

/// Works on `stream` of `device`. The host waits for the device once per hop, and once more if the
/// number of edges is needed in advance: for several relations at once, fanout -1 or a very large
/// one.
///
/// relations: on the device, written by place_relations_cuda; null for one relation.
/// mailbox: mailbox_words words of pinned host memory for sizes, used by this sample alone until it
/// ends.
std::unique_ptr<Backend> make_cuda_backend(int device, uintptr_t stream,
                                           const RelationView* relations, int64_t* mailbox,
                                           Arena& arena);

/// The backend of a sampler on a device; `mailbox` is as above, and is not used on the CPU.
std::unique_ptr<Backend> make_backend(const SamplerSpec& spec, const Launch& launch,
                                      int64_t* mailbox, Arena& arena);

/// A word for bad seeds, and one for each relation, or two for each type of nodes.
inline int64_t mailbox_words(const SamplerSpec& spec) {
  return 1 + static_cast<int64_t>(std::max(spec.relations.size(), 2 * spec.node_types.size()));
}

/// Writes [relations] views to memory of the device, for all samples. Waits for the copy.
void place_relations_cuda(const SamplerSpec& spec, RelationView* memory, int device,
                          uintptr_t stream);

}  // namespace peergraph
