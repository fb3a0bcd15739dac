// Largest or smallest messages on a GPU: as spmm.cu, with (value, position) instead of sums.
#include "aggregate/arg_minmax.h"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm_minmax.h"

namespace peergraph {
namespace {

template <typename T>
struct MinMaxOutput {
  T* out;
  void* arg;
  int32_t arg_bytes;
  bool minimum;
  Best<AccumulatorOf<T>>* partial;  // [slots of the queue, columns]

  __device__ __forceinline__ void write(int64_t index, const Best<AccumulatorOf<T>>& best) const {
    narrow(best.value, out + index);
    store_id(arg, arg_bytes, index, best.position);
  }
};

template <typename Value>
__device__ __forceinline__ Best<Value> from_lane_xor(const Best<Value>& best, int offset) {
  const Value value = __shfl_xor_sync(kFullMask, best.value, offset);
  const long long position =
      __shfl_xor_sync(kFullMask, static_cast<long long>(best.position), offset);
  return {value, position};
}

template <RowLayout kLayout, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kMaxRowThreads)
    minmax_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands operands,
                LaneShape shape, MinMaxOutput<T> output) {
  using Value = AccumulatorOf<T>;
  const LaneColumns<kVec, kItems> lane(shape, operands);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    RowPart part;
    if (!work.find(item, &part)) continue;
    // Set one by one: nvcc 13.0 gives only the first row of a two-dimensional array the defaults of
    // its members.
    Best<Value> best[kItems][kVec];
#pragma unroll
    for (int m = 0; m < kItems; ++m)
#pragma unroll
      for (int i = 0; i < kVec; ++i) best[m][i] = Best<Value>{0, -1};
    each_message<MessageKind::kGeneric, kLayout, 4, T>(
        work.matrix, operands, lane, part, [&](int64_t position, int m, int i, Value value) {
          best[m][i].offer({value, position}, output.minimum);
        });
    // All lanes exchange values before any lane writes: the writes diverge.
#pragma unroll
    for (int m = 0; m < kItems; ++m)
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        for (int offset = lane.lanes; offset < kWarpSize; offset *= 2)
          best[m][i].offer(from_lane_xor(best[m][i], offset), output.minimum);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (lane.group != 0 || !lane.active[m]) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int64_t column = lane.columns[m] + i;
        if (is_narrow(kLayout) && column >= operands.columns) continue;  // scales or padding
        if (part.slot < 0) {
          output.write(part.row * operands.columns + column, best[m][i]);
        } else {
          output.partial[part.slot * operands.columns + column] = best[m][i];
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads)
    combine_minmax(const __grid_constant__ RowWork work, int64_t columns, MinMaxOutput<T> output) {
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      Best<AccumulatorOf<T>> best;
      for (int32_t k = 0; k < chunk.parts; ++k)
        best.offer(output.partial[(slot + k) * columns + c], output.minimum);
      output.write(chunk.row * columns + c, best);
    }
  }
}

template <RowLayout kLayout, typename T, int kVec, int kItems>
void launch_rows(RowWork work, const Operands& operands, const LaneLaunch<kVec, kItems>& shape,
                 const MinMaxOutput<T>& output, cudaStream_t stream) {
  const Schedule schedule = work.matrix.schedule;
  const dim3 rows(blocks_for_items(work.matrix.num_rows, schedule), shape.slices);
  minmax_rows<kLayout, T, kVec, kItems>
      <<<rows, row_threads(schedule), 0, stream>>>(work, operands, shape.shape, output);
  PG_LAUNCH_CHECK("minmax_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work);
  minmax_rows<kLayout, T, kVec, kItems>
      <<<dim3(blocks, shape.slices), row_threads(schedule), 0, stream>>>(work, operands,
                                                                         shape.shape, output);
  PG_LAUNCH_CHECK("minmax_rows of chunks");
  combine_minmax<T><<<blocks, row_threads(schedule), 0, stream>>>(work, operands.columns, output);
  PG_LAUNCH_CHECK("combine_minmax");
}

}  // namespace

void spmm_minmax_cuda(const SpmmMinMax& op, const Launch& launch, const Allocate& allocate) {
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  check_columns(op.matrix);
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const auto run = [&](auto layout, auto element, auto shape) {
    using T = decltype(element);
    using Slot = Best<AccumulatorOf<T>>;
    const RowWork work = make_row_work(op.matrix, allocate, stream);
    MinMaxOutput<T> output{static_cast<T*>(op.out), op.arg, op.arg_bytes, op.minimum, nullptr};
    output.partial = allocate_partials<Slot>(op.matrix, op.operands.columns, allocate);
    launch_rows<decltype(layout)::value, T>(work, op.operands, shape, output, stream);
  };
  if (op.operands.is_narrow()) {
    with_narrow_lanes(op.dtype, op.operands, run);
    return;
  }
  with_lanes(op.dtype, op.operands, op.out, [&](auto element, auto shape) {
    op.operands.x_rows == nullptr
        ? run(std::integral_constant<RowLayout, RowLayout::kDense>{}, element, shape)
        : run(std::integral_constant<RowLayout, RowLayout::kIndirect>{}, element, shape);
  });
}

}  // namespace peergraph
