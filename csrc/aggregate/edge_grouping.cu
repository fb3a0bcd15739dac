// Groups edges by column on a GPU: atomics give each edge its number among those of its column.
#include "aggregate/edge_grouping.h"
#include "common/cuda_check.cuh"
#include "common/warp.cuh"

namespace peergraph {
namespace {

__global__ void __launch_bounds__(kBlockThreads) rank_edges(const __grid_constant__ EdgeRanks op) {
  const int64_t first = op.matrix.begin(0), last = op.matrix.end(op.matrix.num_rows - 1);
  for (int64_t p = first + global_thread(); p < last; p += grid_threads())
    op.ranks[p] = atomicAdd(op.counts + op.matrix.column(p), 1);
}

/// A warp for each row.
__global__ void __launch_bounds__(kBlockThreads)
    place_edges(const __grid_constant__ EdgePlaces op) {
  for (int64_t row = global_warp(); row < op.matrix.num_rows; row += grid_warps()) {
    const int64_t end = op.matrix.end(row);
    for (int64_t p = op.matrix.begin(row) + lane_id(); p < end; p += kWarpSize) {
      const int64_t place = int64_t{op.indptr[op.matrix.column(p)]} + op.ranks[p];
      op.rows[place] = static_cast<int32_t>(row);
      op.edge_ids[place] = static_cast<int32_t>(op.matrix.edge(p));
    }
  }
}

}  // namespace

void rank_edges_cuda(const EdgeRanks& op, const Launch& launch) {
  if (op.matrix.num_edges == 0 || op.matrix.num_rows == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  rank_edges<<<grid_for(op.matrix.num_edges), kBlockThreads, 0, stream>>>(op);
  PG_LAUNCH_CHECK("rank_edges");
}

void place_edges_cuda(const EdgePlaces& op, const Launch& launch) {
  if (op.matrix.num_edges == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const unsigned grid = grid_for(op.matrix.num_rows, kBlockThreads / kWarpSize);
  place_edges<<<grid, kBlockThreads, 0, stream>>>(op);
  PG_LAUNCH_CHECK("place_edges");
}

}  // namespace peergraph
