// Hops by several relations that kernels work on at once, so that the number of launches does not
// grow with the number of relations.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "sampling/weighted_temporal/choice.h"

namespace peergraph {

/// A hop by one relation, with the nodes that its sources are appended to.
struct HopRef {
  int32_t number = 0;  // of the relation
  const RelationView* relation = nullptr;
  const Hop* hop = nullptr;
  const NodeList* sources = nullptr;
};

/// A hop as kernels read it from device memory.
struct DeviceHop {
  Hop hop;
  NodeList sources;
  int32_t relation = 0;  // number
};

/// Whether a hop on CUDA draws uniformly without replacement, out of whole lists or of their parts.
inline bool draws_uniformly(const Hop& hop, const Choice& choice) {
  if (hop.parts == nullptr) return choice.is_uniform_without_replacement();
  return !choice.replace || hop.fanout < 0;
}

/// The hops of one launch, and where kernels read them. Kernels get a single hop by value: it is
/// then read faster, and needs no copy to the device.
class HopBatch {
 public:
  /// One hop by one relation.
  HopBatch(const RelationView& relation, const Hop& hop, const NodeList& sources, Arena& arena,
           uintptr_t stream)
      : hops_{{0, &relation, &hop, &sources}}, arena_(arena), stream_(stream) {}

  /// Hops of which `relations` has the relations, on the device, in the order of their numbers.
  /// Copies the hops to the device: what changes later, kernels do not see.
  HopBatch(std::vector<HopRef> hops, const RelationView* relations, Arena& arena, uintptr_t stream);

  const std::vector<HopRef>& hops() const { return hops_; }
  const RelationView* relations() const { return relations_; }
  const DeviceHop* on_device() const { return on_device_; }
  Arena& arena() const { return arena_; }
  uintptr_t stream() const { return stream_; }

 private:
  std::vector<HopRef> hops_;
  const RelationView* relations_ = nullptr;
  const DeviceHop* on_device_ = nullptr;
  Arena& arena_;
  uintptr_t stream_;
};

}  // namespace peergraph
