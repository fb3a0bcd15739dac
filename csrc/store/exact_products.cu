#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "store/exact_products.h"

namespace peergraph {
namespace {

static_assert(kProductLanes == kWarpSize);

constexpr int kRankThreads = 512;

/// The product of a query with a row, in lane 0.
__device__ __forceinline__ double product_of(const ExactProducts& work, int64_t query, int64_t id) {
  const double* values = work.queries + query * work.columns;
  const char* row = work.table.find(id);
  const char* scales = scales_of(work, row, id);
  double sum = 0;
  // Not fused into one instruction, which would round once.
  for (int64_t c = lane_id(); c < work.columns; c += kWarpSize)
    sum = __dadd_rn(sum, __dmul_rn(values[c], value_of(work, row, scales, c)));
  for (int reach = kWarpSize / 2; reach > 0; reach /= 2)
    sum = __dadd_rn(sum, __shfl_down_sync(kFullMask, sum, reach));
  return sum;
}

__global__ void __launch_bounds__(kBlockThreads)
    exact_products_kernel(const __grid_constant__ ExactProducts work) {
  const int64_t count = work.num_queries * work.rows_of_query;
  for (int64_t i = global_warp(); i < count; i += grid_warps()) {
    const int64_t id = work.ids[i];
    const double product = id < 0 ? -INFINITY : product_of(work, i / work.rows_of_query, id);
    if (lane_id() == 0) work.products[i] = product;
  }
}

/// Sorts by a bitonic network; `size` is a power of two.
__device__ __forceinline__ void sort_block(Ranked* ranked, int size) {
  for (int length = 2; length <= size; length *= 2) {
    for (int reach = length / 2; reach > 0; reach /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kRankThreads) {
        const int low = i / reach * 2 * reach + i % reach, high = low + reach;
        const bool rises = (low & length) == 0;
        const Ranked first = ranked[low], second = ranked[high];
        if (rises ? second < first : first < second) {
          ranked[low] = second;
          ranked[high] = first;
        }
      }
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kRankThreads)
    rank_products_kernel(const __grid_constant__ RankedProducts work) {
  extern __shared__ Ranked ranked[];
  const int64_t query = blockIdx.x;
  const int count = work.counts[query];
  int size = 1;
  while (size < count) size *= 2;
  for (int i = warp_in_block(); i < count; i += kRankThreads / kWarpSize) {
    const int64_t id = user_id_of(work, work.places[query * work.capacity + i]);
    const double product = product_of(work.exact, query, id);
    if (lane_id() == 0) ranked[i] = {product, id};
  }
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kRankThreads)
    ranked[i] = {-INFINITY, INT64_MAX};
  sort_block(ranked, size);
  for (int64_t i = threadIdx.x; i < work.k; i += kRankThreads) {
    const bool is_row = i < count;
    work.products[query * work.k + i] = is_row ? ranked[i].product : -INFINITY;
    work.ids[query * work.k + i] = is_row ? ranked[i].id : -1;
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

void rank_products_cuda(const RankedProducts& work, int device, uintptr_t stream) {
  const ExactProducts& exact = work.exact;
  if (exact.num_queries == 0) return;
  const DeviceGuard guard(device);
  int64_t size = 1;
  while (size < exact.rows_of_query) size *= 2;
  const auto bytes = static_cast<int>(size * static_cast<int64_t>(sizeof(Ranked)));
  PG_CUDA_CHECK(cudaFuncSetAttribute(rank_products_kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  rank_products_kernel<<<static_cast<unsigned>(exact.num_queries), kRankThreads, bytes,
                         reinterpret_cast<cudaStream_t>(stream)>>>(work);
  PG_LAUNCH_CHECK("rank_products_kernel");
}

}  // namespace peergraph
