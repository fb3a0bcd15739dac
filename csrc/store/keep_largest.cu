#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "store/keep_largest.h"

namespace peergraph {
namespace {

constexpr int kBins = 256;  // of a byte
constexpr int kWarps = kBlockThreads / kWarpSize;
static_assert(kBlockThreads == kBins);

/// Maps floats to unsigned integers that have the same order.
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits ^ ((bits & 0x80000000u) ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ float value_of_key(uint32_t key) {
  return __uint_as_float(key ^ ((key & 0x80000000u) ? 0x80000000u : 0xffffffffu));
}

/// The number of flags of the threads before this one, and of the whole block.
struct Places {
  int before, total;
};

__device__ __forceinline__ Places places_of(bool flag, int (&of_warps)[kWarps]) {
  const unsigned ballot = __ballot_sync(kFullMask, flag);
  __syncthreads();  // the sums of the call before were read
  if (lane_id() == 0) of_warps[warp_in_block()] = __popc(ballot);
  __syncthreads();
  Places places{__popc(ballot & ((1u << lane_id()) - 1)), 0};
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < warp_in_block()) places.before += of_warps[warp];
    places.total += of_warps[warp];
  }
  return places;
}

/// The k-th largest value, byte by byte from the highest. `count` >= k.
__device__ float kth_largest(const float* values, int count, int k) {
  __shared__ int bins[kBins];
  __shared__ int of_warps[kWarps];
  __shared__ int chosen, before_chosen;
  uint32_t prefix = 0, mask = 0;
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);  // from the largest
  for (int shift = 24; shift >= 0; shift -= 8) {
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) {
      const uint32_t key = key_of(values[i]);
      if ((key & mask) == prefix) atomicAdd(bins + (key >> shift & (kBins - 1)), 1);
    }
    __syncthreads();
    const int of_bin = bins[bin];
    int up_to = warp_inclusive_sum(of_bin);
    if (lane_id() == kWarpSize - 1) of_warps[warp_in_block()] = up_to;
    __syncthreads();
    for (int warp = 0; warp < warp_in_block(); ++warp) up_to += of_warps[warp];
    if (up_to - of_bin < k && k <= up_to) {
      chosen = bin;
      before_chosen = up_to - of_bin;
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(chosen) << shift;
    mask |= uint32_t{kBins - 1} << shift;
    k -= before_chosen;
  }
  return value_of_key(prefix);
}

__global__ void __launch_bounds__(kBlockThreads)
    keep_largest_kernel(const __grid_constant__ KeepLargest work) {
  __shared__ int of_warps[kWarps];
  const int64_t query = blockIdx.x;
  float* products = work.products + query * work.capacity;
  int64_t* places = work.places + query * work.capacity;
  const int total = work.counts[query], before = work.kept[query];
  const int count = min(total, static_cast<int>(work.capacity));
  if (work.num_excluded > 0) {
    for (int i = before + static_cast<int>(threadIdx.x); i < count; i += kBlockThreads)
      if (is_excluded(work, query, places[i])) products[i] = -INFINITY;
  }
  __syncthreads();
  const float kth =
      count >= work.rank ? kth_largest(products, count, static_cast<int>(work.rank)) : -INFINITY;
  const KeptBounds bounds = kept_bounds(work, query, kth);
  const bool has_overflowed = total > work.capacity;
  const int end = has_overflowed ? before : count;
  int kept = 0;
  for (int base = 0; base < end; base += kBlockThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const float product = i < end ? products[i] : -INFINITY;
    const int64_t place = i < end ? places[i] : 0;
    const bool stays = product > bounds.own;
    const Places at = places_of(stays, of_warps);  // all have read before any writes
    if (stays) {
      products[kept + at.before] = product;
      places[kept + at.before] = place;
    }
    kept += at.total;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const float earlier = work.bounds[query];
  if (has_overflowed || was_wrong(work, earlier, bounds)) work.failed[query] = work.state[1] = 1;
  work.counts[query] = work.kept[query] = kept;
  if (bounds.others > earlier) work.bounds[query] = bounds.others;
  if (work.is_last) atomicMax(work.state, kept);
}

}  // namespace

void keep_largest_cuda(const KeepLargest& work, int device, uintptr_t stream) {
  if (work.num_queries == 0) return;
  const DeviceGuard guard(device);
  keep_largest_kernel<<<static_cast<unsigned>(work.num_queries), kBlockThreads, 0,
                        reinterpret_cast<cudaStream_t>(stream)>>>(work);
  PG_LAUNCH_CHECK("keep_largest_kernel");
}

}  // namespace peergraph
