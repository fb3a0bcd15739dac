#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "store/exact_products.h"

namespace peergraph {
namespace {

static_assert(kProductLanes == kWarpSize);

__global__ void __launch_bounds__(kBlockThreads)
    exact_products_kernel(const __grid_constant__ ExactProducts work) {
  const int64_t count = work.num_queries * work.rows_of_query;
  for (int64_t i = global_warp(); i < count; i += grid_warps()) {
    const int64_t id = work.ids[i];
    double sum = 0;
    if (id >= 0) {
      const double* query = work.queries + i / work.rows_of_query * work.columns;
      const char* row = work.table.find(id);
      const char* scales = scales_of(work, row, id);
      // Not fused into one instruction, which would round once.
      for (int64_t c = lane_id(); c < work.columns; c += kWarpSize)
        sum = __dadd_rn(sum, __dmul_rn(query[c], value_of(work, row, scales, c)));
    }
    for (int reach = kWarpSize / 2; reach > 0; reach /= 2)
      sum = __dadd_rn(sum, __shfl_down_sync(kFullMask, sum, reach));
    if (lane_id() == 0) work.products[i] = id < 0 ? -INFINITY : sum;
  }
}

}  // namespace

void exact_products_cuda(const ExactProducts& work, int device, uintptr_t stream) {
  const int64_t count = work.num_queries * work.rows_of_query;
  if (count == 0) return;
  const DeviceGuard guard(device);
  exact_products_kernel<<<grid_for(count, kBlockThreads / kWarpSize), kBlockThreads, 0,
                          reinterpret_cast<cudaStream_t>(stream)>>>(work);
  PG_LAUNCH_CHECK("exact_products_kernel");
}

}  // namespace peergraph
