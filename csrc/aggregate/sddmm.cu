// g-SDDMM on a GPU: a warp for each run of edges, regardless of their rows; groups of lanes compute
// values of edges, several at a time.
#include <algorithm>

#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/sddmm.h"
#include "common/partition_point.h"

namespace peergraph {
namespace {

// Edges of a warp. Few edges are divided among about kWarps warps: with fewer warps, a GPU would
// wait for memory most of the time.
constexpr int64_t kMostEdgesPerWarp = 256, kFewestEdgesPerWarp = 32, kWarps = 1 << 15;

/// The row of a position among rows low .. high: the last one that begins at it or before.
__device__ __forceinline__ int64_t find_row(const CsrMatrix& rows, int64_t position, int64_t low,
                                            int64_t high) {
  const auto begins = [&](int64_t row) { return rows.begin(row) <= position; };
  return partition_point(low + 1, high + 1, begins) - 1;
}

struct EdgeShape {
  int64_t edges_per_warp;
  int32_t lanes_log2;   // a power of two of lanes works on a value of out
  uint32_t left_group;  // columns of the op for each of the operand
  uint32_t right_group;
  bool needs_row;
};

struct Place {
  int64_t column;
  int64_t row;
  int64_t edge;

  __device__ __forceinline__ int64_t of(Target target) const {
    return target == Target::kColumn ? column : target == Target::kRow ? row : edge;
  }
};

/// kVec values of an operand, from column `c` of the op on. Vectors are used on full operands only.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> read(const EdgeOperand& operand, const Place& place,
                                              int64_t c, uint32_t group) {
  const T* row = static_cast<const T*>(operand.data) + place.of(operand.target) * operand.columns;
  return load_shared_pack<T, kVec>(row + (kVec > 1 ? c : c / group));
}

/// kIsProduct: whether the message is kMul. The compiler then knows the message.
template <typename T, int kVec, bool kIsProduct>
__global__ void __launch_bounds__(kMaxRowThreads)
    edge_values(const __grid_constant__ Sddmm op, EdgeShape shape) {
  using Value = AccumulatorOf<T>;
  constexpr int kInFlight = 4;
  const int lanes = 1 << shape.lanes_log2, groups = kWarpSize >> shape.lanes_log2;
  const int group = lane_id() >> shape.lanes_log2, lane = lane_id() & (lanes - 1);
  const bool reads_left = kIsProduct || uses_u(op.message);
  const bool reads_right = kIsProduct || uses_e(op.message);
  const uint32_t heads = static_cast<uint32_t>(op.heads);
  const int64_t chunks = (op.matrix.num_edges + shape.edges_per_warp - 1) / shape.edges_per_warp;
  for (int64_t chunk = global_warp(); chunk < chunks; chunk += grid_warps()) {
    const int64_t first = chunk * shape.edges_per_warp, behind = first + shape.edges_per_warp;
    const int64_t last = behind < op.matrix.num_edges ? behind : op.matrix.num_edges;
    int64_t low = 0, high = 0;
    if (shape.needs_row) {
      low = find_row(op.matrix, first, 0, op.matrix.num_rows - 1);
      high = find_row(op.matrix, last - 1, low, op.matrix.num_rows - 1);
    }
    const int64_t items = (last - first) * heads;
    for (int64_t step = 0; step < items; step += groups * kInFlight) {
      Value sums[kInFlight] = {};
      int64_t targets[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int64_t item = step + k * groups + group;
        targets[k] = -1;
        if (item >= items) continue;
        const uint32_t offset = static_cast<uint32_t>(item) / heads;
        const int64_t head = static_cast<uint32_t>(item) - offset * heads;
        const int64_t position = first + offset;
        Place place{0, 0, op.matrix.edge(position)};
        place.column = op.matrix.column(position);
        if (shape.needs_row) place.row = find_row(op.matrix, position, low, high);
        targets[k] = place.edge * op.heads + head;
        for (int64_t d = lane * kVec; d < op.depth; d += lanes * kVec) {
          const int64_t c = head * op.depth + d;
          Pack<T, kVec> left = {}, right = {};
          if (reads_left) left = read<T, kVec>(op.left, place, c, shape.left_group);
          if (reads_right) right = read<T, kVec>(op.right, place, c, shape.right_group);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            const Value u = widen(left.values[i]), e = widen(right.values[i]);
            sums[k] += kIsProduct ? u * e : apply<Value>(op.message, u, e);
          }
        }
      }
      // All lanes exchange values before any lane writes: the writes diverge.
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
        for (int offset = lanes / 2; offset > 0; offset /= 2)
          sums[k] += __shfl_xor_sync(kFullMask, sums[k], offset);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
        if (lane == 0 && targets[k] >= 0) op.template write<T>(targets[k], sums[k]);
    }
  }
}

template <typename T>
bool can_use_vectors(const Sddmm& op) {
  constexpr int64_t kVec = 16 / sizeof(T);
  const auto fits = [&](const EdgeOperand& operand) {
    return operand.data == nullptr || (operand.columns == op.heads * op.depth &&
                                       reinterpret_cast<uintptr_t>(operand.data) % 16 == 0);
  };
  return op.depth % kVec == 0 && fits(op.left) && fits(op.right);
}

template <typename T, int kVec>
void launch_rows(const Sddmm& op, cudaStream_t stream) {
  const Schedule& schedule = op.matrix.schedule;
  const int64_t columns = op.heads * op.depth;
  const auto group = [&](const EdgeOperand& operand) {
    return static_cast<uint32_t>(operand.columns > 0 ? columns / operand.columns : 1);
  };
  const int64_t even_share = (op.matrix.num_edges + kWarps - 1) / kWarps;
  EdgeShape shape{std::clamp(even_share, kFewestEdgesPerWarp, kMostEdgesPerWarp), 0, group(op.left),
                  group(op.right), false};
  while (shape.lanes_log2 < 5 && (int64_t{kVec} << shape.lanes_log2) < op.depth) ++shape.lanes_log2;
  shape.needs_row = (uses_u(op.message) && op.left.target == Target::kRow) ||
                    (uses_e(op.message) && op.right.target == Target::kRow);
  const int64_t chunks = (op.matrix.num_edges + shape.edges_per_warp - 1) / shape.edges_per_warp;
  const auto kernel =
      op.message == Message::kMul ? edge_values<T, kVec, true> : edge_values<T, kVec, false>;
  kernel<<<blocks_for_items(chunks, schedule), row_threads(schedule), 0, stream>>>(op, shape);
  PG_LAUNCH_CHECK("edge_values");
}

}  // namespace

void sddmm_cuda(const Sddmm& op, const Launch& launch) {
  if (op.matrix.num_edges == 0 || op.heads == 0) return;
  PG_CHECK_ARG(op.heads * op.depth <= 1 << 23,
               "features of so many columns are not supported on a GPU");
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    if (can_use_vectors<T>(op)) {
      launch_rows<T, 16 / sizeof(T)>(op, stream);
    } else {
      launch_rows<T, 1>(op, stream);
    }
  });
}

}  // namespace peergraph
