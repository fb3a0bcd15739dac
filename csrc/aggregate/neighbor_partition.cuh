// How warps share out rows (neighbour partitioning, MGG 3.2): one row at a time, long rows in
// chunks, so that a hub does not keep one warp busy while all others have finished.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "common/allocate.h"
#include "common/cuda_check.cuh"
#include "common/warp.cuh"

namespace peergraph {

// Two warps a block: a block lives as long as its longest row, and its other warps' places on the
// multiprocessor stay empty meanwhile.
constexpr int kRowThreads = 2 * kWarpSize;
// Rows of more than kLongRow edges are cut in chunks of kChunk; rows.py counts them likewise.
constexpr int64_t kChunk = 256;
constexpr int64_t kLongRow = 512;

/// Chunk `part` of the `parts` of a row; the chunks of a row lie next to each other.
struct Chunk {
  int64_t row;
  int32_t part;
  int32_t parts;
};

/// Filled by the warps that meet a long row. `capacity` 0: no row is cut.
struct ChunkQueue {
  unsigned long long* count = nullptr;
  Chunk* chunks = nullptr;
  int64_t capacity = 0;
};

/// Edges begin .. end - 1, all of a row or the chunk at `slot` of the queue (-1: all).
struct Part {
  int64_t row;
  int64_t begin;
  int64_t end;
  int64_t slot;
};

/// The work of one launch: all rows, or what an earlier launch has queued.
struct RowWork {
  CsrMatrix rows;
  ChunkQueue queue;
  bool queued = false;

  __device__ __forceinline__ int64_t size() const {
    if (!queued) return rows.num_rows;
    const int64_t count = static_cast<int64_t>(*queue.count);
    return count < queue.capacity ? count : queue.capacity;
  }

  /// Finds item `i`; false where it has been queued instead. The same for all lanes of a warp.
  __device__ __forceinline__ bool find(int64_t i, Part* part) const {
    if (queued) {
      const Chunk chunk = queue.chunks[i];
      const int64_t end = rows.end(chunk.row);
      const int64_t begin = rows.begin(chunk.row) + chunk.part * kChunk;
      *part = {chunk.row, begin, begin + kChunk < end ? begin + kChunk : end, i};
      return true;
    }
    *part = {i, rows.begin(i), rows.end(i), -1};
    if (queue.capacity == 0 || part->end - part->begin <= kLongRow) return true;
    if (blockIdx.y == 0) enqueue(i, part->end - part->begin);
    return false;
  }

 private:
  __device__ void enqueue(int64_t row, int64_t degree) const {
    const int32_t parts = static_cast<int32_t>((degree + kChunk - 1) / kChunk);
    unsigned long long first = 0;
    if (lane_id() == 0) first = atomicAdd(queue.count, static_cast<unsigned>(parts));
    first = __shfl_sync(kFullMask, first, 0);
    for (int32_t k = lane_id(); k < parts; k += kWarpSize) {
      const int64_t slot = static_cast<int64_t>(first) + k;
      if (slot < queue.capacity) queue.chunks[slot] = {row, k, parts};
    }
  }
};

/// An empty queue in scratch memory.
inline ChunkQueue make_queue(int64_t capacity, const Allocate& allocate, cudaStream_t stream) {
  ChunkQueue queue;
  if (capacity == 0) return queue;
  char* scratch = static_cast<char*>(allocate((capacity + 1) * int64_t{sizeof(Chunk)}));
  queue.count = reinterpret_cast<unsigned long long*>(scratch);
  queue.chunks = reinterpret_cast<Chunk*>(scratch) + 1;
  queue.capacity = capacity;
  PG_CUDA_CHECK(cudaMemsetAsync(queue.count, 0, sizeof(*queue.count), stream));
  return queue;
}

/// Blocks of kRowThreads threads that give each item a warp.
inline unsigned blocks_for_items(int64_t items) {
  return grid_for(items, kRowThreads / kWarpSize, int64_t{1} << 30);
}

/// Blocks that share what is queued, which is seldom as much as there is room for.
inline unsigned blocks_for_queue(const ChunkQueue& queue) {
  return grid_for(queue.capacity, kRowThreads / kWarpSize, 1 << 14);
}

}  // namespace peergraph
