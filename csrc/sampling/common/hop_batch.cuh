// How kernels read a batch of hops, and how they are launched for it.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "common/items_of_blocks.cuh"
#include "sampling/common/hop_batch.h"

namespace peergraph {

inline cudaStream_t as_stream(uintptr_t address) { return reinterpret_cast<cudaStream_t>(address); }

/// Copies the items to memory of the arena; they may be changed afterwards, as CUDA has read memory
/// that is not pinned when the call returns.
template <typename Item>
const Item* copy_to_device(const std::vector<Item>& items, Arena& arena, uintptr_t stream) {
  static_assert(std::is_trivially_copyable_v<Item>);
  const auto bytes = static_cast<int64_t>(items.size() * sizeof(Item));
  auto* const copy = static_cast<Item*>(arena.take(bytes));
  PG_CUDA_CHECK(cudaMemcpyAsync(copy, items.data(), static_cast<size_t>(bytes),
                                cudaMemcpyHostToDevice, as_stream(stream)));
  return copy;
}

/// The part of a launch that works on one hop: block `block` of `blocks`. The hop is number `index`
/// of its batch.
struct HopPart {
  const Hop& hop;
  const NodeList& sources;
  int64_t block;
  int64_t blocks;
  int32_t index;

  __device__ int64_t thread() const { return block * blockDim.x + threadIdx.x; }
  __device__ int64_t threads() const { return blocks * blockDim.x; }
};

/// A single hop, as a parameter of kernels that do not read its relation.
struct OneHop {
  Hop hop;
  NodeList sources;

  explicit OneHop(const HopRef& of) : hop(*of.hop), sources(*of.sources) {}

  __device__ HopPart part() const { return {hop, sources, blockIdx.x, gridDim.x, 0}; }
};

/// A single hop and its relation, as a parameter of kernels.
struct OneHopAndRelation : OneHop {
  RelationView view;

  explicit OneHopAndRelation(const HopRef& of) : OneHop(of), view(*of.relation) {}

  __device__ const RelationView& relation(const HopPart&) const { return view; }
};
static_assert(sizeof(OneHopAndRelation) < 4000, "kernel parameters");

/// Several hops, as a parameter of kernels. Each block works on one of them.
struct ManyHops {
  const RelationView* relations;
  ManyItems<DeviceHop> hops;

  /// As ManyItems::part.
  __device__ HopPart part() const {
    const ItemPart<DeviceHop> part = hops.part();
    return {part.item.hop, part.item.sources, part.block, part.blocks, part.index};
  }

  __device__ const RelationView& relation(const HopPart& part) const {
    return relations[hops.items[part.index].relation];
  }
};

/// An argument that each hop of a batch has its own of: by value for one, an array for many.
template <typename Item>
__device__ __forceinline__ const Item& of_hop(const Item& item, int32_t) {
  return item;
}
template <typename Item>
__device__ __forceinline__ const Item& of_hop(const Item* items, int32_t index) {
  return items[index];
}

/// The argument of a kernel for of_hop. `first` is the number of the hop if there is one.
template <typename Hops, typename Item>
auto argument_of(const std::vector<Item>& items, size_t first, const HopBatch& batch) {
  if constexpr (std::is_same_v<Hops, ManyHops>)
    return copy_to_device(items, batch.arena(), batch.stream());
  else
    return items[first];
}

/// Calls launch(hops, blocks, first) for the hops of a batch that need blocks, with `hops` for the
/// kernel: a `One`, of the hop number `first`, or ManyHops. blocks_of(hop, relation) is the number
/// of blocks for a hop.
template <typename One, typename Blocks, typename Launch>
void launch_for(const HopBatch& batch, const Blocks& blocks_of, const Launch& launch) {
  std::vector<FirstBlock> first_blocks;
  int64_t blocks = 0;
  const std::vector<HopRef>& hops = batch.hops();
  for (size_t i = 0; i < hops.size(); ++i) {
    const int64_t of_hop = blocks_of(*hops[i].hop, *hops[i].relation);
    if (of_hop == 0) continue;
    first_blocks.push_back({static_cast<int32_t>(blocks), static_cast<int32_t>(i)});
    blocks += of_hop;
    PG_CHECK_ARG(blocks <= INT32_MAX, "a hop has too many targets: use fewer seeds or fanouts");
  }
  if (first_blocks.empty()) return;
  if (first_blocks.size() == 1)
    return launch(One(hops[first_blocks[0].item]), static_cast<unsigned>(blocks),
                  static_cast<size_t>(first_blocks[0].item));
  const ManyHops many{
      batch.relations(),
      {batch.on_device(), copy_to_device(first_blocks, batch.arena(), batch.stream()),
       static_cast<int32_t>(first_blocks.size()), static_cast<int32_t>(blocks)}};
  launch(many, static_cast<unsigned>(blocks), size_t{0});
}

}  // namespace peergraph
