// Largest or smallest messages on a GPU: as spmm.cu, with (value, position) in the place of sums.
#include "aggregate/arg_minmax.h"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm_minmax.h"

namespace peergraph {
namespace {

template <typename T>
struct ExtremumOutput {
  T* out;
  void* arg;
  int32_t arg_bytes;
  bool minimum;
  Best<AccumulatorOf<T>>* partial;  // [slots of the queue, columns]

  __device__ __forceinline__ void write(int64_t at, const Best<AccumulatorOf<T>>& best) const {
    narrow(best.value, out + at);
    store_id(arg, arg_bytes, at, best.position);
  }
};

template <typename Value>
__device__ __forceinline__ Best<Value> from_lane_xor(const Best<Value>& best, int offset) {
  const Value value = __shfl_xor_sync(kFullMask, best.value, offset);
  const long long position =
      __shfl_xor_sync(kFullMask, static_cast<long long>(best.position), offset);
  return {value, position};
}

template <Lie kLie, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kRowThreads)
    extremum_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands of,
                  LaneShape shape, ExtremumOutput<T> to) {
  using Value = AccumulatorOf<T>;
  const Lanes<kVec, kItems> at(shape, of);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    Part part;
    if (!work.find(item, &part)) continue;
    // Set one by one: nvcc 13.0 gives only the first row of a two-dimensional array the defaults of
    // its members.
    Best<Value> best[kItems][kVec];
#pragma unroll
    for (int m = 0; m < kItems; ++m)
#pragma unroll
      for (int i = 0; i < kVec; ++i) best[m][i] = Best<Value>{0, -1};
    each_message<Known::kNothing, kLie, 4, T>(work.rows, of, at, part,
                                              [&](int64_t position, int m, int i, Value value) {
                                                best[m][i].offer({value, position}, to.minimum);
                                              });
    // All lanes exchange before any writes: between writes the warp would not be together.
#pragma unroll
    for (int m = 0; m < kItems; ++m)
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        for (int offset = at.lanes; offset < kWarpSize; offset *= 2)
          best[m][i].offer(from_lane_xor(best[m][i], offset), to.minimum);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (at.group != 0 || !at.on[m]) continue;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int64_t column = at.columns[m] + i;
        if (part.slot < 0) {
          to.write(part.row * of.columns + column, best[m][i]);
        } else {
          to.partial[part.slot * of.columns + column] = best[m][i];
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    combine_extrema(const __grid_constant__ RowWork work, int64_t columns, ExtremumOutput<T> to) {
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      Best<AccumulatorOf<T>> best;
      for (int32_t k = 0; k < chunk.parts; ++k)
        best.offer(to.partial[(slot + k) * columns + c], to.minimum);
      to.write(chunk.row * columns + c, best);
    }
  }
}

template <Lie kLie, typename T, int kVec, int kItems>
void launch(RowWork work, const Operands& of, const LaneLaunch<kVec, kItems>& shape,
            const ExtremumOutput<T>& to, cudaStream_t stream) {
  const dim3 rows(blocks_for_items(work.rows.num_rows), shape.slices);
  extremum_rows<kLie, T, kVec, kItems><<<rows, kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("extremum_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work.queue);
  extremum_rows<kLie, T, kVec, kItems>
      <<<dim3(blocks, shape.slices), kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("extremum_rows of chunks");
  combine_extrema<T><<<blocks, kRowThreads, 0, stream>>>(work, of.columns, to);
  PG_LAUNCH_CHECK("combine_extrema");
}

}  // namespace

void extremum_cuda(const Extremum& op, int64_t max_chunks, const Allocate& allocate, int device,
                   uintptr_t stream_address) {
  if (op.rows.num_rows == 0 || op.of.columns == 0) return;
  check_columns(op.rows);
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  RowWork work;
  work.rows = op.rows;
  work.queue = make_queue(max_chunks, allocate, stream);
  with_lanes(op.dtype, op.of, op.out, [&](auto element, auto shape) {
    using T = decltype(element);
    using Slot = Best<AccumulatorOf<T>>;
    ExtremumOutput<T> to{static_cast<T*>(op.out), op.arg, op.arg_bytes, op.minimum, nullptr};
    if (max_chunks > 0)
      to.partial = static_cast<Slot*>(
          allocate(max_chunks * op.of.columns * static_cast<int64_t>(sizeof(Slot))));
    op.of.x_rows == nullptr ? launch<Lie::kInMatrix, T>(work, op.of, shape, to, stream)
                            : launch<Lie::kAnywhere, T>(work, op.of, shape, to, stream);
  });
}

}  // namespace peergraph
