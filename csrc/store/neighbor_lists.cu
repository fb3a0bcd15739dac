#include "common/cuda_check.cuh"
#include "store/neighbor_lists.cuh"

namespace peergraph {
namespace {

constexpr int kLanes = 32;
constexpr int kListsPerBlock = kBlockThreads / kLanes;

__global__ void scatter_lists_kernel(const CscView view, const ListChunk chunk,
                                     const IdMapView destinations, const IdMapView sources) {
  const int64_t step = grid_threads() / kLanes;
  for (int64_t i = global_thread() / kLanes; i < chunk.count; i += step) {
    scatter_list(view, chunk, i, destinations, sources, threadIdx.x % kLanes, kLanes);
  }
}

__global__ void gather_lists_kernel(const __grid_constant__ GraphView graph,
                                    const ListChunk chunk) {
  const int64_t step = grid_threads() / kLanes;
  for (int64_t i = global_thread() / kLanes; i < chunk.count; i += step) {
    gather_list(graph, chunk, i, threadIdx.x % kLanes, kLanes);
  }
}

__global__ void degrees_kernel(const __grid_constant__ GraphView graph, int64_t first,
                               int64_t count, int64_t* degrees) {
  for (int64_t i = global_thread(); i < count; i += grid_threads()) {
    degrees[i] = num_neighbors(graph, first + i);
  }
}

}  // namespace

void scatter_lists_cuda(const CscView& view, const ListChunk& chunk, const IdMapView& destinations,
                        const IdMapView& sources, int device, uintptr_t stream) {
  if (chunk.count == 0) return;
  const DeviceGuard guard(device);
  scatter_lists_kernel<<<grid_for(chunk.count, kListsPerBlock), kBlockThreads, 0,
                         reinterpret_cast<cudaStream_t>(stream)>>>(view, chunk, destinations,
                                                                   sources);
  PG_LAUNCH_CHECK("scatter_lists");
}

void gather_lists_cuda(const GraphView& graph, const ListChunk& chunk, int device,
                       uintptr_t stream) {
  if (chunk.count == 0) return;
  const DeviceGuard guard(device);
  gather_lists_kernel<<<grid_for(chunk.count, kListsPerBlock), kBlockThreads, 0,
                        reinterpret_cast<cudaStream_t>(stream)>>>(graph, chunk);
  PG_LAUNCH_CHECK("gather_lists");
}

void degrees_cuda(const GraphView& graph, int64_t first, int64_t count, int64_t* degrees,
                  int device, uintptr_t stream) {
  if (count == 0) return;
  const DeviceGuard guard(device);
  degrees_kernel<<<grid_for(count), kBlockThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
      graph, first, count, degrees);
  PG_LAUNCH_CHECK("degrees");
}

}  // namespace peergraph
