// How kernels read a batch of hops, and how they are launched for it.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "common/cuda_check.cuh"
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

/// The first of the blocks that work on a hop.
struct FirstBlock {
  int32_t block;
  int32_t hop;  // number in the batch
};

/// Several hops, as a parameter of kernels. Each block works on one of them.
struct ManyHops {
  const RelationView* relations;
  const DeviceHop* hops;
  const FirstBlock* first_blocks;  // [count] ascending
  int32_t count;
  int32_t num_blocks;

  /// Copies the block's hop to shared memory; all threads must call it first, together.
  __device__ HopPart part() const {
    alignas(DeviceHop) __shared__ char memory[sizeof(DeviceHop)];
    __shared__ int32_t place;
    const auto own = static_cast<int32_t>(blockIdx.x);
    if (threadIdx.x == 0) place = place_of(own);
    __syncthreads();
    const FirstBlock begin = first_blocks[place];
    const int32_t behind = place + 1 < count ? first_blocks[place + 1].block : num_blocks;
    static_assert(sizeof(DeviceHop) % sizeof(int64_t) == 0);
    const auto* const from = reinterpret_cast<const int64_t*>(hops + begin.hop);
    for (unsigned i = threadIdx.x; i < sizeof(DeviceHop) / sizeof(int64_t); i += blockDim.x)
      reinterpret_cast<int64_t*>(memory)[i] = from[i];
    __syncthreads();
    const auto& copy = *reinterpret_cast<const DeviceHop*>(memory);
    return {copy.hop, copy.sources, own - begin.block, behind - begin.block, begin.hop};
  }

  __device__ const RelationView& relation(const HopPart& part) const {
    return relations[hops[part.index].relation];
  }

 private:
  /// Binary search for the last hop that begins by this block.
  __device__ int32_t place_of(int32_t block) const {
    int32_t first = 0, end = count;
    while (end - first > 1) {
      const int32_t middle = (first + end) / 2;
      if (first_blocks[middle].block <= block)
        first = middle;
      else
        end = middle;
    }
    return first;
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
    return launch(One(hops[first_blocks[0].hop]), static_cast<unsigned>(blocks),
                  static_cast<size_t>(first_blocks[0].hop));
  const ManyHops many{batch.relations(), batch.on_device(),
                      copy_to_device(first_blocks, batch.arena(), batch.stream()),
                      static_cast<int32_t>(first_blocks.size()), static_cast<int32_t>(blocks)};
  launch(many, static_cast<unsigned>(blocks), size_t{0});
}

}  // namespace peergraph
