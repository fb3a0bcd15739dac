#include <utility>

#include "sampling/common/hop_batch.cuh"

namespace peergraph {

HopBatch::HopBatch(std::vector<HopRef> hops, const RelationView* relations, Arena& arena,
                   uintptr_t stream)
    : hops_(std::move(hops)), relations_(relations), arena_(arena), stream_(stream) {
  if (hops_.size() < 2) return;  // kernels get it by value
  std::vector<DeviceHop> copies;
  for (const HopRef& ref : hops_) copies.push_back({*ref.hop, *ref.sources, ref.number});
  on_device_ = copy_to_device(copies, arena, stream);
}

}  // namespace peergraph
