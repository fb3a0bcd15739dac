// Launches for several items, of which each block works on one: the number of launches does not
// grow with the number of items.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/allocate.h"
#include "common/cuda_check.cuh"
#include "common/partition_point.h"

namespace peergraph {

/// The part of a launch that works on one item: block `block` of `blocks`. The item is number
/// `index` of the launch.
template <typename Item>
struct ItemPart {
  const Item& item;
  int64_t block;
  int64_t blocks;
  int32_t index;
};

/// A single item, as a parameter of kernels: it is then read faster, and needs no copy to the
/// device.
template <typename Item>
struct OneItem {
  Item item;

  __device__ __forceinline__ ItemPart<Item> part() const {
    return {item, blockIdx.x, gridDim.x, 0};
  }
};

/// The first of the blocks that work on an item.
struct FirstBlock {
  int32_t block;
  int32_t item;  // number in the launch
};

/// Several items, as a parameter of kernels.
template <typename Item>
struct ManyItems {
  const Item* items;
  const FirstBlock* first_blocks;  // [count] ascending
  int32_t count;
  int32_t num_blocks;

  /// Copies the block's item to shared memory; all threads must call it first, together.
  __device__ __forceinline__ ItemPart<Item> part() const {
    alignas(Item) __shared__ char memory[sizeof(Item)];
    __shared__ int32_t place;
    const auto own = static_cast<int32_t>(blockIdx.x);
    if (threadIdx.x == 0) place = place_of(own);
    __syncthreads();
    const FirstBlock begin = first_blocks[place];
    const int32_t behind = place + 1 < count ? first_blocks[place + 1].block : num_blocks;
    static_assert(std::is_trivially_copyable_v<Item> && sizeof(Item) % sizeof(int64_t) == 0);
    const auto* const from = reinterpret_cast<const int64_t*>(items + begin.item);
    for (unsigned i = threadIdx.x; i < sizeof(Item) / sizeof(int64_t); i += blockDim.x)
      reinterpret_cast<int64_t*>(memory)[i] = from[i];
    __syncthreads();
    return {*reinterpret_cast<const Item*>(memory), own - begin.block, behind - begin.block,
            begin.item};
  }

 private:
  /// The last item that begins by this block.
  __device__ int32_t place_of(int32_t block) const {
    const auto begins = [&](int32_t i) { return first_blocks[i].block <= block; };
    return partition_point(1, count, begins) - 1;
  }
};

/// Whether the stream's work is captured into a CUDA graph.
inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PG_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Calls launch(items, blocks), with OneItem or ManyItems for the kernel. blocks[i], at least 1, is
/// the number of blocks for items[i]. A CUDA graph gets a launch for each item: it would read their
/// copies anew whenever it runs.
///
/// allocate: for several items, gives memory of the device for copies of them. CUDA has read memory
/// that is not pinned when its copy returns, so the items may be changed afterwards.
template <typename Item, typename Launch>
void launch_items(const std::vector<Item>& items, const std::vector<unsigned>& blocks,
                  const Allocate& allocate, cudaStream_t stream, const Launch& launch) {
  if (items.size() == 1 || is_capturing(stream)) {
    for (size_t i = 0; i < items.size(); ++i) launch(OneItem<Item>{items[i]}, blocks[i]);
    return;
  }
  const size_t item_bytes = items.size() * sizeof(Item);
  std::vector<FirstBlock> first_blocks;
  unsigned num_blocks = 0;
  for (const unsigned of_item : blocks) {
    first_blocks.push_back(
        {static_cast<int32_t>(num_blocks), static_cast<int32_t>(first_blocks.size())});
    num_blocks += of_item;
  }
  std::vector<char> bytes(item_bytes + first_blocks.size() * sizeof(FirstBlock));
  std::memcpy(bytes.data(), items.data(), item_bytes);
  std::memcpy(bytes.data() + item_bytes, first_blocks.data(), bytes.size() - item_bytes);
  auto* const copy = static_cast<char*>(allocate(static_cast<int64_t>(bytes.size())));
  PG_CUDA_CHECK(cudaMemcpyAsync(copy, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
  launch(ManyItems<Item>{reinterpret_cast<const Item*>(copy),
                         reinterpret_cast<const FirstBlock*>(copy + item_bytes),
                         static_cast<int32_t>(items.size()), static_cast<int32_t>(num_blocks)},
         num_blocks);
}

}  // namespace peergraph
