// g-SpMM on a GPU: a warp for each row or chunk of a long row, sums in registers, results written
// once.
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/padded_rows.cuh"
#include "aggregate/spmm.h"
#include "aggregate/spmm_output.cuh"

namespace peergraph {
namespace {

template <MessageKind kKind, RowLayout kLayout, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kMaxRowThreads)
    spmm_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands operands,
              LaneShape shape, SpmmOutput<T> output) {
  using Value = AccumulatorOf<T>;
  // Twice as many rows in flight if only rows, or rows and one number for each, are read.
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
      T* out = output.out + chunk.row * columns + c;
      sum = output.result(sum, degree);
      if (output.accumulate) sum += widen(*out);
      narrow(sum, out);
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

template <MessageKind kKind, typename T, int kVec, int kItems>
void launch_for_layout(const RowWork& work, const Operands& operands,
                       const LaneLaunch<kVec, kItems>& shape, const SpmmOutput<T>& output,
                       cudaStream_t stream) {
  operands.x_rows == nullptr
      ? launch_rows<kKind, RowLayout::kDense, T>(work, operands, shape, output, stream)
      : launch_rows<kKind, RowLayout::kIndirect, T>(work, operands, shape, output, stream);
}

template <typename T, int kVec, int kItems>
void launch_for_kind(const RowWork& work, const Operands& operands,
                     const LaneLaunch<kVec, kItems>& shape, const SpmmOutput<T>& output,
                     cudaStream_t stream) {
  if (operands.message == Message::kCopyU) {
    launch_for_layout<MessageKind::kCopyU, T>(work, operands, shape, output, stream);
  } else if (operands.message == Message::kMul && shape.shape.edge_values == EdgeValues::kOne) {
    launch_for_layout<MessageKind::kScale, T>(work, operands, shape, output, stream);
  } else if (operands.message == Message::kMul) {
    launch_for_layout<MessageKind::kMul, T>(work, operands, shape, output, stream);
  } else {
    PG_CHECK_ARG(operands.x_rows == nullptr, "rows at addresses are copied or scaled only");
    launch_rows<MessageKind::kGeneric, RowLayout::kDense, T>(work, operands, shape, output, stream);
  }
}

template <typename T, int kVec, int kItems>
void launch_spmm(const Spmm& op, const Operands& operands, const LaneLaunch<kVec, kItems>& shape,
                 const Allocate& allocate, cudaStream_t stream) {
  const RowWork work = make_row_work(op.matrix, allocate, stream);
  const int64_t width = (operands.columns + kVec - 1) / kVec * kVec;
  auto* partial = allocate_partials<AccumulatorOf<T>>(op.matrix, width, allocate);
  const SpmmOutput<T> output{static_cast<T*>(op.out), partial, width, op.mean, op.accumulate};
  launch_for_kind<T>(work, operands, shape, output, stream);
}

}  // namespace

void spmm_cuda(const Spmm& op, const Launch& launch, const Allocate& allocate) {
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  check_columns(op.matrix);
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVec = 16 / sizeof(T);
    if (can_use_vectors<T>(op.operands, op.out)) {
      launch_spmm<T>(op, op.operands, lane_launch<kVec, 1>(op.operands), allocate, stream);
    } else if (pays_to_pad<T>(op.matrix, op.operands)) {
      const Operands padded = pad_rows<T>(op.matrix, op.operands, allocate, stream);
      launch_spmm<T>(op, padded, lane_launch<kVec, 1>(padded), allocate, stream);
    } else {
      const auto shape = lane_launch<1, kNarrowItems>(op.operands);
      launch_spmm<T>(op, op.operands, shape, allocate, stream);
    }
  });
}

}  // namespace peergraph
