// Gradients of sources on a GPU without a transpose: the rows of g-SpMM, run backwards with atomics
// (WholeGraph III-C4).
#include "aggregate/atomic_add.cuh"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm_transposed.h"

namespace peergraph {
namespace {

template <typename T>
struct SpreadOutput {
  AccumulatorOf<T>* out;
  const int32_t* counts;
};

template <typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kRowThreads)
    spread_rows(const __grid_constant__ RowWork work, const __grid_constant__ Operands of,
                LaneShape shape, SpreadOutput<T> to) {
  using Value = AccumulatorOf<T>;
  const Lanes<kVec, kItems> at(shape, of);
  const T* x = static_cast<const T*>(of.x);
  const T* e = static_cast<const T*>(of.e);
  const EdgeValues mode = shape.edge_values;
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    Part part;
    if (!work.find(item, &part)) continue;
    // The row is read once for all its edges.
    Pack<T, kVec> us[kItems] = {};
#pragma unroll
    for (int m = 0; m < kItems; ++m)
      if (uses_u(of.message) && at.on[m])
        us[m] = load_pack<T, kVec>(x + part.row * of.columns + at.columns[m]);
    for (int64_t p = part.begin + at.group; p < part.end; p += at.groups) {
      const int64_t column = work.rows.column(p);
      const bool once = to.counts != nullptr && to.counts[column] == 1;
      const T* edge = mode == EdgeValues::kNone ? nullptr : e + work.rows.edge(p) * of.e_columns;
#pragma unroll
      for (int m = 0; m < kItems; ++m) {
        if (!at.on[m]) continue;
        Pack<T, kVec> es = {};
        if (mode == EdgeValues::kFull) {
          es = load_pack<T, kVec>(edge + at.e_columns[m]);
        } else if (mode != EdgeValues::kNone) {
          es.values[0] = edge[mode == EdgeValues::kOne ? 0 : at.e_columns[m]];
        }
        Pack<Value, kVec> message;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const T value = es.values[mode == EdgeValues::kFull ? i : 0];
          message.values[i] = apply<Value>(of.message, widen(us[m].values[i]), widen(value));
        }
        Value* out = to.out + column * of.columns + at.columns[m];
        if (once) {
#pragma unroll
          for (int i = 0; i < kVec; ++i) out[i] = message.values[i];
        } else {
          add_pack<kVec>(out, message);
        }
      }
    }
  }
}

template <typename T, int kVec, int kItems>
void launch(RowWork work, const Operands& of, const LaneLaunch<kVec, kItems>& shape,
            const SpreadOutput<T>& to, cudaStream_t stream) {
  const dim3 rows(blocks_for_items(work.rows.num_rows), shape.slices);
  spread_rows<T, kVec, kItems><<<rows, kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("spread_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const dim3 chunks(blocks_for_queue(work.queue), shape.slices);
  spread_rows<T, kVec, kItems><<<chunks, kRowThreads, 0, stream>>>(work, of, shape.shape, to);
  PG_LAUNCH_CHECK("spread_rows of chunks");
}

}  // namespace

void spread_cuda(const Spread& op, int64_t max_chunks, const Allocate& allocate, int device,
                 uintptr_t stream_address) {
  if (op.rows.num_edges == 0 || op.of.columns == 0) return;
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  RowWork work;
  work.rows = op.rows;
  work.queue = make_queue(max_chunks, allocate, stream);
  with_lanes(op.dtype, op.of, op.out, [&](auto element, auto shape) {
    using T = decltype(element);
    const SpreadOutput<T> to{static_cast<AccumulatorOf<T>*>(op.out), op.counts};
    launch<T>(work, op.of, shape, to, stream);
  });
}

}  // namespace peergraph
