// The kernels of g-SpMM: a warp for each row or chunk of a long row, sums in registers, results
// written once.
#pragma once

#include <algorithm>

#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm.h"
#include "aggregate/spmm_output.cuh"

namespace peergraph {

template <MessageKind kKind, RowLayout kLayout, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kMaxRowThreads)
    spmm_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands operands,
              LaneShape shape, SpmmOutput<T> output) {
  using Value = AccumulatorOf<T>;
  // A lane loads twice as many rows at a time if an edge needs its row and at most one number.
  constexpr bool kFew = kKind == MessageKind::kCopyU || kKind == MessageKind::kScale;
  constexpr int kInFlight = kFew && kItems == 1 ? 8 : 4;
  const LaneColumns<kVec, kItems> lane(shape, operands);
  const int64_t num_runs = work.num_runs();
  for (int64_t item = global_warp(); item < num_runs; item += grid_warps()) {
    RowRun run = work.run(item);
    int row = run.next();
    if (row < 0) continue;
    EdgeSpan edges = run.edges_of(row);
    EdgeAhead<T> ahead;
    if (edges.begin + lane_id() < edges.end)
      read_ahead<kKind>(work.matrix, operands, run.first_edge + edges.begin + lane_id(), &ahead);
    for (; row >= 0; row = run.next(), edges = run.edges_of(row)) {
      run.left &= run.left - 1;
      Value sum[kItems][kVec] = {};
      each_message<kKind, kLayout, kInFlight, T>(
          work.matrix, operands, lane, run.first_edge, edges,
          [&] { return run.edges_of(run.next()); }, &ahead,
          [&](int64_t, int m, int i, Value value) { sum[m][i] += value; });
      // All lanes exchange values before any lane writes: the writes diverge.
#pragma unroll
      for (int m = 0; m < kItems; ++m)
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[m][i] = sum_over_groups(sum[m][i], lane.lanes);
      __syncwarp();
      write_sums<T>(operands, lane, run.first_row + row, edges.end - edges.begin,
                    work.queued ? item : -1, output, sum);
    }
  }
}

/// Adds up the chunks of each long row, in their order.
template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads)
    combine_spmm(const __grid_constant__ RowWork work, int64_t columns, SpmmOutput<T> output) {
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    const int64_t degree = work.matrix.end(chunk.row) - work.matrix.begin(chunk.row);
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      AccumulatorOf<T> sum = 0;
      for (int32_t k = 0; k < chunk.parts; ++k)
        sum += output.partial[(slot + k) * output.partial_stride + c];
      sum = output.result(sum, degree);
      output.with_out([&](auto* out) {
        auto* at = out + chunk.row * output.stride + c;
        narrow(output.accumulate ? sum + widen(*at) : sum, at);
      });
    }
  }
}

template <MessageKind kKind, RowLayout kLayout, typename T, int kVec, int kItems>
void launch_rows(RowWork work, const Operands& operands, const LaneLaunch<kVec, kItems>& shape,
                 const SpmmOutput<T>& output, cudaStream_t stream) {
  const Schedule schedule = work.matrix.schedule;
  work.rows_per_run = rows_of_run(work.matrix);
  // Empty rows would read and write the existing sums.
  work.skips_empty = output.accumulate;
  const int64_t runs = (work.matrix.num_rows + work.rows_per_run - 1) / work.rows_per_run;
  const dim3 rows(blocks_for_items(runs, schedule), shape.slices);
  spmm_rows<kKind, kLayout, T, kVec, kItems>
      <<<rows, row_threads(schedule), 0, stream>>>(work, operands, shape.shape, output);
  PG_LAUNCH_CHECK("spmm_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work);
  spmm_rows<kKind, kLayout, T, kVec, kItems>
      <<<dim3(blocks, shape.slices), row_threads(schedule), 0, stream>>>(work, operands,
                                                                         shape.shape, output);
  PG_LAUNCH_CHECK("spmm_rows of chunks");
  combine_spmm<T><<<blocks, row_threads(schedule), 0, stream>>>(work, operands.columns, output);
  PG_LAUNCH_CHECK("combine_spmm");
}

/// Whether vectors of `vec` values of the output, of whatever type, can be written at once.
inline bool can_write_vectors(const Spmm& op, int64_t vec) {
  const int64_t bytes = vec * bytes_of(op.out_dtype);
  return op.operands.columns % vec == 0 && op.row_stride() % vec == 0 &&
         reinterpret_cast<uintptr_t>(op.out) % bytes == 0;
}

/// Where a launch writes, with scratch memory for the chunks of long rows.
template <typename T, int kVec>
SpmmOutput<T> make_spmm_output(const Spmm& op, const Allocate& allocate) {
  const int64_t width = (op.operands.columns + kVec - 1) / kVec * kVec;
  auto* partial = allocate_partials<AccumulatorOf<T>>(op.matrix, width, allocate);
  return {static_cast<T*>(op.out),
          partial,
          width,
          op.mean,
          op.accumulate,
          op.row_stride(),
          can_write_vectors(op, std::min<int64_t>(kVec, 16 / bytes_of(op.out_dtype))),
          op.dtype == op.out_dtype ? DType::kFloat32 : op.out_dtype};
}

}  // namespace peergraph
