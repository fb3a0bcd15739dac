// g-SpMM on a GPU: a warp for each row or chunk of a long row, sums in registers, results written
// once.
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm.h"

namespace peergraph {
namespace {

template <typename T>
struct SumOutput {
  T* out;
  AccumulatorOf<T>* partial;  // [slots of the queue, columns]
  bool mean;
};

template <typename T>
__device__ __forceinline__ T rounded(AccumulatorOf<T> sum, bool mean, int64_t degree) {
  T out;
  narrow(mean ? sum / static_cast<AccumulatorOf<T>>(degree > 0 ? degree : 1) : sum, &out);
  return out;
}

template <Known kKnown, Lie kLie, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kRowThreads)
    sum_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands of,
             LaneShape shape, SumOutput<T> to) {
  using Value = AccumulatorOf<T>;
  // Twice as many rows in flight where nothing but rows and a number for each is read.
  constexpr bool kFew = kKnown == Known::kCopyU || kKnown == Known::kScale;
  constexpr int kInFlight = kFew && kItems == 1 ? 8 : 4;
  const Lanes<kVec, kItems> at(shape, of);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    Part part;
    if (!work.find(item, &part)) continue;
    Value sum[kItems][kVec] = {};
    each_message<kKnown, kLie, kInFlight, T>(
        work.rows, of, at, part, [&](int64_t, int m, int i, Value value) { sum[m][i] += value; });
    // All lanes exchange before any writes: between writes the warp would not be together.
#pragma unroll
    for (int m = 0; m < kItems; ++m)
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        for (int offset = at.lanes; offset < kWarpSize; offset *= 2)
          sum[m][i] += __shfl_xor_sync(kFullMask, sum[m][i], offset);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (at.group != 0 || !at.on[m]) continue;
      if (part.slot < 0) {
        Pack<T, kVec> pack;
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          pack.values[i] = rounded<T>(sum[m][i], to.mean, part.end - part.begin);
        store_pack(to.out + part.row * of.columns + at.columns[m], pack);
      } else {
        Value* partial = to.partial + part.slot * of.columns + at.columns[m];
#pragma unroll
        for (int i = 0; i < kVec; ++i) partial[i] = sum[m][i];
      }
    }
  }
}

/// Adds up the chunks of each long row, in their order.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    combine_sums(const __grid_constant__ RowWork work, int64_t columns, SumOutput<T> to) {
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    const int64_t degree = work.rows.end(chunk.row) - work.rows.begin(chunk.row);
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      AccumulatorOf<T> sum = 0;
      for (int32_t k = 0; k < chunk.parts; ++k) sum += to.partial[(slot + k) * columns + c];
      to.out[chunk.row * columns + c] = rounded<T>(sum, to.mean, degree);
    }
  }
}

template <Known kKnown, Lie kLie, typename T, int kVec, int kItems>
void launch(RowWork work, const Operands& of, const LaneLaunch<kVec, kItems>& shape,
            const SumOutput<T>& to, cudaStream_t stream) {
  const dim3 rows(blocks_for_items(work.rows.num_rows), shape.slices);
  sum_rows<kKnown, kLie, T, kVec, kItems>
      <<<rows, kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("sum_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work.queue);
  sum_rows<kKnown, kLie, T, kVec, kItems>
      <<<dim3(blocks, shape.slices), kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("sum_rows of chunks");
  combine_sums<T><<<blocks, kRowThreads, 0, stream>>>(work, of.columns, to);
  PG_LAUNCH_CHECK("combine_sums");
}

template <Known kKnown, typename T, int kVec, int kItems>
void launch_lying(const RowWork& work, const Operands& of, const LaneLaunch<kVec, kItems>& shape,
                  const SumOutput<T>& to, cudaStream_t stream) {
  of.x_rows == nullptr ? launch<kKnown, Lie::kInMatrix, T>(work, of, shape, to, stream)
                       : launch<kKnown, Lie::kAnywhere, T>(work, of, shape, to, stream);
}

template <typename T, int kVec, int kItems>
void launch_known(const RowWork& work, const Operands& of, const LaneLaunch<kVec, kItems>& shape,
                  const SumOutput<T>& to, cudaStream_t stream) {
  if (of.message == Message::kCopyU) {
    launch_lying<Known::kCopyU, T>(work, of, shape, to, stream);
  } else if (of.message == Message::kMul && shape.shape.edge_values == EdgeValues::kOne) {
    launch_lying<Known::kScale, T>(work, of, shape, to, stream);
  } else if (of.message == Message::kMul) {
    launch_lying<Known::kMul, T>(work, of, shape, to, stream);
  } else {
    PG_CHECK_ARG(of.x_rows == nullptr, "rows at addresses are copied or scaled only");
    launch<Known::kNothing, Lie::kInMatrix, T>(work, of, shape, to, stream);
  }
}

}  // namespace

void spmm_cuda(const Spmm& op, int64_t max_chunks, const Allocate& allocate, int device,
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
    using Value = AccumulatorOf<T>;
    SumOutput<T> to{static_cast<T*>(op.out), nullptr, op.mean};
    if (max_chunks > 0)
      to.partial = static_cast<Value*>(
          allocate(max_chunks * op.of.columns * static_cast<int64_t>(sizeof(Value))));
    launch_known<T>(work, op.of, shape, to, stream);
  });
}

}  // namespace peergraph
