#include "common/cuda_check.cuh"
#include "sampling/common/contains.cuh"
#include "sampling/walks/random_walk.cuh"

namespace peergraph {
namespace {

constexpr int kLanes = ContainsByWarp::kLanes;

// Kernels read the views in the launch parameters; a local copy would be indexed in local
// memory.
static_assert(sizeof(CscView) + sizeof(Walks) < 4000, "kernel parameters");

__global__ void __launch_bounds__(kBlockThreads)
    walk_by_thread(const __grid_constant__ CscView csc, const __grid_constant__ Walks walks) {
  for (int64_t w = global_thread(); w < walks.count; w += grid_threads())
    take_steps(csc, walks, w, true, ContainsInTurn{});
}

__global__ void __launch_bounds__(kBlockThreads)
    walk_by_warp(const __grid_constant__ CscView csc, const __grid_constant__ Walks walks) {
  const bool writes = threadIdx.x % kLanes == 0;
  const int64_t step = grid_threads() / kLanes;
  for (int64_t w = global_thread() / kLanes; w < walks.count; w += step)
    take_steps(csc, walks, w, writes, ContainsByWarp{});
}

}  // namespace

void random_walk_cuda(const CscView& csc, const Walks& walks, int device,
                      uintptr_t stream_address) {
  if (walks.count == 0) return;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (walks.biased) {
    walk_by_warp<<<grid_for(walks.count, kBlockThreads / kLanes), kBlockThreads, 0, stream>>>(
        csc, walks);
    PG_LAUNCH_CHECK("walk_by_warp");
  } else {
    walk_by_thread<<<grid_for(walks.count), kBlockThreads, 0, stream>>>(csc, walks);
    PG_LAUNCH_CHECK("walk_by_thread");
  }
}

}  // namespace peergraph
