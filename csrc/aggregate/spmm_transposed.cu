// Gradients of sources on a GPU without a transpose: the rows of g-SpMM, run backwards with atomics
// (WholeGraph III-C4).
#include "aggregate/atomic_add.cuh"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm_transposed.h"

namespace peergraph {
namespace {

template <typename T>
struct ScatterOutput {
  AccumulatorOf<T>* out;
  const int32_t* counts;
};

template <typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kMaxRowThreads)
    scatter_add_rows(const __grid_constant__ RowWork work,
                     const __grid_constant__ Operands operands, LaneShape shape,
                     ScatterOutput<T> output) {
  using Value = AccumulatorOf<T>;
  const LaneColumns<kVec, kItems> lane(shape, operands);
  const T* x = static_cast<const T*>(operands.x);
  const T* e = static_cast<const T*>(operands.e);
  const EdgeValues mode = shape.edge_values;
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    RowPart part;
    if (!work.find(item, &part)) continue;
    // The row is read once for all its edges.
    Pack<T, kVec> us[kItems] = {};
#pragma unroll
    for (int m = 0; m < kItems; ++m)
      if (uses_u(operands.message) && lane.active[m])
        us[m] = load_pack<T, kVec>(x + part.row * operands.columns + lane.columns[m]);
    for (int64_t p = part.begin + lane.group; p < part.end; p += lane.groups) {
      const int64_t column = work.matrix.column(p);
      const bool once = output.counts != nullptr && output.counts[column] == 1;
      const T* edge =
          mode == EdgeValues::kNone ? nullptr : e + work.matrix.edge(p) * operands.e_columns;
#pragma unroll
      for (int m = 0; m < kItems; ++m) {
        if (!lane.active[m]) continue;
        Pack<T, kVec> es = {};
        if (mode == EdgeValues::kFull) {
          es = load_pack<T, kVec>(edge + lane.e_columns[m]);
        } else if (mode != EdgeValues::kNone) {
          es.values[0] = edge[mode == EdgeValues::kOne ? 0 : lane.e_columns[m]];
        }
        Pack<Value, kVec> message;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const T value = es.values[mode == EdgeValues::kFull ? i : 0];
          message.values[i] = apply<Value>(operands.message, widen(us[m].values[i]), widen(value));
        }
        Value* out = output.out + column * operands.columns + lane.columns[m];
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
void launch_rows(RowWork work, const Operands& operands, const LaneLaunch<kVec, kItems>& shape,
                 const ScatterOutput<T>& output, cudaStream_t stream) {
  const Schedule schedule = work.matrix.schedule;
  const dim3 rows(blocks_for_items(work.matrix.num_rows, schedule), shape.slices);
  scatter_add_rows<T, kVec, kItems>
      <<<rows, row_threads(schedule), 0, stream>>>(work, operands, shape.shape, output);
  PG_LAUNCH_CHECK("scatter_add_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const dim3 chunks(blocks_for_queue(work), shape.slices);
  scatter_add_rows<T, kVec, kItems>
      <<<chunks, row_threads(schedule), 0, stream>>>(work, operands, shape.shape, output);
  PG_LAUNCH_CHECK("scatter_add_rows of chunks");
}

}  // namespace

void spmm_transposed_cuda(const SpmmTransposed& op, const Launch& launch,
                          const Allocate& allocate) {
  if (op.matrix.num_edges == 0 || op.operands.columns == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const RowWork work = make_row_work(op.matrix, allocate, stream);
  with_lanes(op.dtype, op.operands, op.out, [&](auto element, auto shape) {
    using T = decltype(element);
    const ScatterOutput<T> output{static_cast<AccumulatorOf<T>*>(op.out), op.counts};
    launch_rows<T>(work, op.operands, shape, output, stream);
  });
}

}  // namespace peergraph
