// The assignment of rows to warps (neighbour partitioning, MGG 3.2): one row at a time, long rows
// in chunks, so that a hub does not keep one warp busy after all others have finished.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "common/allocate.h"
#include "common/cuda_check.cuh"
#include "common/warp.cuh"

namespace peergraph {

/// The largest number of threads of a block; Schedule::warps_per_block is the actual number.
/// Kernels declare no more: for 256 threads ptxas gives SpMM 79 registers per thread instead of 72,
/// so that an eighth fewer warps fit a multiprocessor, which costs 7 % of the time.
constexpr int kMaxRowThreads = kMaxWarpsPerBlock * kWarpSize;

/// The number of threads that attention kernels declare. They run with as many threads as the
/// others, but the number of registers that ptxas chooses for this declaration makes GAT 5 %
/// faster.
constexpr int kAttentionThreadBound = 256;

/// Chunk `part` of the `parts` of a row; the chunks of a row are adjacent in the queue.
struct Chunk {
  int64_t row;
  int32_t part;
  int32_t parts;
};

/// A queue that warps fill when they find a long row. `capacity` 0: no row is cut.
struct ChunkQueue {
  unsigned long long* count = nullptr;
  Chunk* chunks = nullptr;
  int64_t capacity = 0;
};

/// Queues the chunks of a row, adjacent to each other. All lanes of the warp call this.
__device__ inline void enqueue_chunks(const ChunkQueue& queue, int64_t row, int32_t parts) {
  unsigned long long first = 0;
  if (lane_id() == 0) first = atomicAdd(queue.count, static_cast<unsigned>(parts));
  first = __shfl_sync(kFullMask, first, 0);
  for (int32_t k = lane_id(); k < parts; k += kWarpSize) {
    const int64_t slot = static_cast<int64_t>(first) + k;
    if (slot < queue.capacity) queue.chunks[slot] = {row, k, parts};
  }
}

/// Edges begin .. end - 1 of a row: all of its edges if `slot` is -1, else the chunk at `slot` of
/// the queue.
struct RowPart {
  int64_t row;
  int64_t begin;
  int64_t end;
  int64_t slot;
};

/// Edges begin .. end - 1 of a row, counted from the first edge of a run.
struct EdgeSpan {
  uint32_t begin;
  uint32_t end;
};

/// Up to kWarpSize adjacent rows that one warp reduces one after the other. Lane k holds the edges
/// of row first_row + k. All rows together have fewer than 2^32 edges.
struct RowRun {
  int64_t first_row;
  int64_t first_edge;  // position of the first edge of first_row
  EdgeSpan span;       // edges of this lane's row, counted from first_edge
  unsigned left;       // bit k: row first_row + k has not been reduced yet; equal in all lanes

  /// Returns k of the next row first_row + k that has not been reduced yet; -1: there is none.
  __device__ __forceinline__ int next() const { return __ffs(left) - 1; }

  /// Returns the edges of row first_row + `row`; no edges for row -1.
  __device__ __forceinline__ EdgeSpan edges_of(int row) const {
    const EdgeSpan edges{__shfl_sync(kFullMask, span.begin, row & (kWarpSize - 1)),
                         __shfl_sync(kFullMask, span.end, row & (kWarpSize - 1))};
    return row < 0 ? EdgeSpan{0, 0} : edges;
  }
};

/// The work of one launch: all rows, or the chunks that an earlier launch has queued.
struct RowWork {
  CsrMatrix matrix;
  ChunkQueue queue;
  bool queued = false;
  int32_t rows_per_run = 1;  // at most kWarpSize
  bool skips_empty = false;  // rows without edges, in runs

  __device__ __forceinline__ int64_t num_runs() const {
    return queued ? size() : (matrix.num_rows + rows_per_run - 1) / rows_per_run;
  }

  /// The rows of run `i` without the queued and the skipped rows.
  __device__ __forceinline__ RowRun run(int64_t i) const {
    if (queued) {
      RowPart part;
      find(i, &part);
      return {part.row, part.begin, {0, static_cast<uint32_t>(part.end - part.begin)}, 1};
    }
    RowRun run;
    run.first_row = i * rows_per_run;
    const int64_t row = run.first_row + lane_id();
    const bool valid = lane_id() < rows_per_run && row < matrix.num_rows;
    const int64_t begin = valid ? matrix.begin(row) : 0;
    const int64_t end = valid ? matrix.end(row) : 0;
    run.first_edge = __shfl_sync(kFullMask, begin, 0);
    run.span = {static_cast<uint32_t>(begin - run.first_edge),
                static_cast<uint32_t>(end - run.first_edge)};
    const bool is_cut = queue.capacity != 0 && end - begin > matrix.schedule.long_row;
    unsigned cut = __ballot_sync(kFullMask, is_cut);
    const bool is_left = valid && !is_cut && !(skips_empty && begin == end);
    run.left = __ballot_sync(kFullMask, is_left);
    for (; blockIdx.y == 0 && cut != 0; cut &= cut - 1) {
      const int lane = __ffs(cut) - 1;
      enqueue(run.first_row + lane, __shfl_sync(kFullMask, end - begin, lane));
    }
    return run;
  }

  __device__ __forceinline__ int64_t size() const {
    if (!queued) return matrix.num_rows;
    const int64_t count = static_cast<int64_t>(*queue.count);
    return count < queue.capacity ? count : queue.capacity;
  }

  /// Finds item `i`; returns false if it was queued instead. The same for all lanes of a warp.
  __device__ __forceinline__ bool find(int64_t i, RowPart* part) const {
    if (queued) {
      const Chunk chunk = queue.chunks[i];
      const int64_t end = matrix.end(chunk.row);
      const int64_t begin = matrix.begin(chunk.row) + chunk.part * matrix.schedule.chunk;
      *part = {chunk.row, begin, min(begin + matrix.schedule.chunk, end), i};
      return true;
    }
    *part = {i, matrix.begin(i), matrix.end(i), -1};
    if (queue.capacity == 0 || part->end - part->begin <= matrix.schedule.long_row) return true;
    if (blockIdx.y == 0) enqueue(i, part->end - part->begin);
    return false;
  }

 private:
  __device__ void enqueue(int64_t row, int64_t degree) const {
    const int64_t chunk = matrix.schedule.chunk;
    enqueue_chunks(queue, row, static_cast<int32_t>((degree + chunk - 1) / chunk));
  }
};

/// Makes an empty queue in scratch memory; capacity 0 takes no memory.
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

/// All rows of the matrix, with an empty queue for the chunks of its long rows in scratch memory.
inline RowWork make_row_work(const CsrMatrix& matrix, const Allocate& allocate,
                             cudaStream_t stream) {
  RowWork work;
  work.matrix = matrix;
  work.queue = make_queue(matrix.schedule.max_chunks, allocate, stream);
  return work;
}

/// The number of adjacent rows for one warp. Several short rows are faster in one warp: it reads
/// the edges of the next row while it waits for the features of the current row.
inline int32_t rows_of_run(const CsrMatrix& matrix) {
  constexpr int64_t kEdgesOfRun = 512, kMostRows = 16;
  constexpr int64_t kLeastRuns = 1 << 14;  // that keep a GPU busy to the end
  if (matrix.num_edges >= int64_t{1} << 32) return 1;
  const int64_t by_edges = kEdgesOfRun * matrix.num_rows / std::max<int64_t>(1, matrix.num_edges);
  const int64_t rows = std::min({by_edges, kMostRows, matrix.num_rows / kLeastRuns});
  return static_cast<int32_t>(std::max<int64_t>(1, rows));
}

/// Scratch memory of `width` values for each chunk; null where no row is cut.
template <typename Value>
Value* allocate_partials(const CsrMatrix& matrix, int64_t width, const Allocate& allocate) {
  const int64_t chunks = matrix.schedule.max_chunks;
  if (chunks == 0) return nullptr;
  return static_cast<Value*>(allocate(chunks * width * static_cast<int64_t>(sizeof(Value))));
}

inline unsigned row_threads(const Schedule& schedule) {
  return static_cast<unsigned>(schedule.warps_per_block * kWarpSize);
}

/// The number of blocks that have a warp for each item.
inline unsigned blocks_for_items(int64_t items, const Schedule& schedule) {
  return grid_for(items, schedule.warps_per_block, int64_t{1} << 30);
}

/// The number of blocks that work on the queued chunks; the queue is seldom full.
inline unsigned blocks_for_queue(const RowWork& work) {
  return grid_for(work.queue.capacity, work.matrix.schedule.warps_per_block, 1 << 14);
}

}  // namespace peergraph
