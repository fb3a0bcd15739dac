// How warps share the rows of a gather or scatter: tiles of rows, whose addresses the lanes look up
// together, and groups of lanes that copy a row.
#pragma once

#include <algorithm>
#include <vector>

#include "common/cuda_check.cuh"
#include "common/items_of_blocks.cuh"
#include "common/warp.cuh"
#include "memory/error_slot.h"
#include "memory/gather.h"

namespace peergraph {

constexpr int kWarpsPerBlock = kBlockThreads / kWarpSize;

struct CopyShape {
  int64_t vectors_per_row;
  int32_t lanes_per_row_log2;  // a power of two of at most 32 lanes copies a row
  int32_t tile_rows;           // rows that a warp looks up at a time, at most 32
  int32_t host_tile_rows;      // the same, for rows in host memory
  unsigned host_blocks;        // so many first blocks of the grid read only host memory
};

/// The rows that a warp copies: tiles of rows that begin at first, first + step, ..., below end.
struct WarpShare {
  int64_t first;
  int64_t end;
  int64_t step;
  int tile_rows;
};

/// Looks up row `i` of the op. Null for padding, for an id out of range, which is recorded, and for
/// a row that the GPU does not read.
__device__ __forceinline__ char* find_row(const TableView& table, const IdList& ids, int64_t i,
                                          const ErrorSlot& errors) {
  const int64_t id = ids.id(i);
  if (id < 0 || id >= table.map.rows) {
    if (!ids.admits(id, table.map.rows)) record_bad_id(errors, ids.out_row(i), id, table.map.rows);
    return nullptr;
  }
  return table.find(id);
}

__device__ __forceinline__ char* from_lane(char* value, int lane) {
  return reinterpret_cast<char*>(
      __shfl_sync(kFullMask, reinterpret_cast<unsigned long long>(value), lane));
}

/// `work` has ids and a shape; `part` is what the warp's block works on of it.
template <bool kSplitsHostRows, typename Work>
__device__ __forceinline__ WarpShare share_of_warp(const Work& work, const ItemPart<Work>& part) {
  const IdList& ids = work.ids;
  const CopyShape& shape = work.shape;
  int64_t begin = 0, end = ids.count;
  auto block = static_cast<unsigned>(part.block), blocks = static_cast<unsigned>(part.blocks);
  int tile_rows = shape.tile_rows;
  if (kSplitsHostRows && shape.host_blocks != 0) {
    if (block < shape.host_blocks) {
      begin = *ids.host_begin;
      blocks = shape.host_blocks;
      tile_rows = shape.host_tile_rows;
    } else {
      end = *ids.host_begin;
      block -= shape.host_blocks;
      blocks -= shape.host_blocks;
    }
  }
  const int64_t warp = static_cast<int64_t>(block) * kWarpsPerBlock + warp_in_block();
  return {begin + warp * tile_rows, end, int64_t{blocks} * kWarpsPerBlock * tile_rows, tile_rows};
}

/// The number of blocks that fill the current device.
template <typename Kernel>
int64_t resident_blocks(Kernel kernel, int device) {
  int per_multiprocessor = 0, multiprocessors = 0;
  PG_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kBlockThreads, 0));
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return std::max<int64_t>(1, static_cast<int64_t>(per_multiprocessor) * multiprocessors);
}

/// The number of blocks that read host memory. Every row there needs an address translation. The
/// machine caches the latest translations, and rows that are far apart evict each other's.
/// Measured on an H200 with rows of 512 bytes: 8 blocks read random rows of 40 GiB at 30 GB/s, 128
/// blocks at 21; where all translations fit into the cache, 8 blocks are too few for the link.
inline unsigned host_blocks(const TableView& table) {
  constexpr int64_t kCachedBytes = int64_t{16} << 30;
  return table.map.host * table.row_bytes > kCachedBytes ? 8 : 64;
}

/// Divides `count` rows of `vectors_per_row` vectors among `warps` resident warps.
inline CopyShape make_shape(int64_t vectors_per_row, int64_t count, int64_t warps,
                            int rows_in_flight) {
  CopyShape shape{vectors_per_row, 0, kWarpSize, 0, 0};
  while (shape.lanes_per_row_log2 < 5 && (1 << shape.lanes_per_row_log2) < vectors_per_row)
    ++shape.lanes_per_row_log2;
  // Small batches are spread over all warps, with few rows in each.
  const int least = std::min(kWarpSize, rows_in_flight * (kWarpSize >> shape.lanes_per_row_log2));
  shape.host_tile_rows = least;
  while (shape.tile_rows > least && count < warps * shape.tile_rows) shape.tile_rows /= 2;
  return shape;
}

/// Divides the blocks that fill the GPU, or the most that the ids allow, among pieces of work that
/// are launched together, by the bytes of their rows. Calls set_shape(work, blocks) for each, and
/// returns the blocks of each.
template <typename Work, typename SetShape>
std::vector<unsigned> share_blocks(std::vector<Work>& all, int64_t resident,
                                   const SetShape& set_shape) {
  double total = 0;
  for (const Work& each : all) {
    total += static_cast<double>(each.ids.count) * static_cast<double>(each.table.row_bytes);
    if (each.ids.max_blocks != 0) resident = std::min(resident, each.ids.max_blocks);
  }
  std::vector<unsigned> blocks;
  for (Work& each : all) {
    const double bytes =
        static_cast<double>(each.ids.count) * static_cast<double>(each.table.row_bytes);
    const double part = total > 0 ? bytes / total : 1;
    const int64_t share =
        std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(resident) * part));
    set_shape(each, share);
    const int64_t rows_of_block = int64_t{kWarpsPerBlock} * each.shape.tile_rows;
    blocks.push_back(grid_for(each.ids.count, rows_of_block, share) + each.shape.host_blocks);
  }
  return blocks;
}

}  // namespace peergraph
