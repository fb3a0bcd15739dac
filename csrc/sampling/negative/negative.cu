#include "common/cuda_check.cuh"
#include "sampling/common/contains.cuh"
#include "sampling/negative/negative.h"

namespace peergraph {
namespace {

constexpr int kLanes = ContainsByWarp::kLanes;

static_assert(sizeof(CscView) + sizeof(Negatives) < 4000, "kernel parameters");

__global__ void __launch_bounds__(kBlockThreads)
    negatives_by_thread(const __grid_constant__ CscView csc,
                        const __grid_constant__ Negatives negatives) {
  for (int64_t n = global_thread(); n < negatives.count; n += grid_threads())
    draw_negative(csc, negatives, n, true, ContainsInTurn{});
}

__global__ void __launch_bounds__(kBlockThreads)
    negatives_by_warp(const __grid_constant__ CscView csc,
                      const __grid_constant__ Negatives negatives) {
  const bool writes = threadIdx.x % kLanes == 0;
  const int64_t step = grid_threads() / kLanes;
  for (int64_t n = global_thread() / kLanes; n < negatives.count; n += step)
    draw_negative(csc, negatives, n, writes, ContainsByWarp{});
}

}  // namespace

void negatives_cuda(const CscView& csc, const Negatives& negatives, int device,
                    uintptr_t stream_address) {
  if (negatives.count == 0) return;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (negatives.is_edge != nullptr) {
    negatives_by_warp<<<grid_for(negatives.count, kBlockThreads / kLanes), kBlockThreads, 0,
                        stream>>>(csc, negatives);
    PG_LAUNCH_CHECK("negatives_by_warp");
  } else {
    negatives_by_thread<<<grid_for(negatives.count), kBlockThreads, 0, stream>>>(csc, negatives);
    PG_LAUNCH_CHECK("negatives_by_thread");
  }
}

}  // namespace peergraph
