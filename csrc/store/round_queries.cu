#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "store/round_queries.h"

namespace peergraph {
namespace {

__global__ void __launch_bounds__(kBlockThreads)
    round_queries_kernel(const __grid_constant__ RoundQueries work) {
  for (int64_t query = global_warp(); query < work.num_queries; query += grid_warps()) {
    const double* values = work.queries + query * work.columns;
    double largest = 0, square = 0, rest_square = 0;
    for (int64_t c = lane_id(); c < work.columns; c += kWarpSize) {
      largest = fmax(largest, fabs(values[c]));
      square += values[c] * values[c];
    }
    for (int reach = 1; reach < kWarpSize; reach *= 2)
      largest = fmax(largest, __shfl_xor_sync(kFullMask, largest, reach));
    const float scale = query_scale(work, largest);
    for (int64_t c = lane_id(); c < work.columns; c += kWarpSize) {
      const double rest = round_value(work, query, c, scale);
      rest_square += rest * rest;
    }
    square = sum_over_groups(square);
    rest_square = sum_over_groups(rest_square);
    if (lane_id() != 0) continue;
    work.scales[query] = scale;
    write_errors(work, query, sqrt(square), sqrt(rest_square));
  }
}

}  // namespace

void round_queries_cuda(const RoundQueries& work, int device, uintptr_t stream) {
  if (work.num_queries == 0) return;
  const DeviceGuard guard(device);
  round_queries_kernel<<<grid_for(work.num_queries, kBlockThreads / kWarpSize), kBlockThreads, 0,
                         reinterpret_cast<cudaStream_t>(stream)>>>(work);
  PG_LAUNCH_CHECK("round_queries_kernel");
}

}  // namespace peergraph
