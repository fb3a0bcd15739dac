#include "common/cuda_check.cuh"
#include "sampling/draws/draw_nodes.cuh"

namespace peergraph {
namespace {

__global__ void __launch_bounds__(kBlockThreads)
    draw_nodes_kernel(const NodeDraw from, int64_t count, uint64_t seed, uint64_t stream,
                      int64_t* nodes) {
  for (int64_t i = global_thread(); i < count; i += grid_threads())
    nodes[i] = draw_node(from, seed, stream, i);
}

__global__ void __launch_bounds__(kBlockThreads) square_keys_kernel(const SquareDraw draw) {
  for (int64_t i = global_thread(); i < draw.count; i += grid_threads())
    draw.keys[i] = square_key(draw, i);
}

}  // namespace

void draw_nodes_cuda(const NodeDraw& from, int64_t count, uint64_t seed, uint64_t random_stream,
                     int64_t* nodes, int device, uintptr_t stream) {
  if (count == 0) return;
  const DeviceGuard guard(device);
  draw_nodes_kernel<<<grid_for(count), kBlockThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
      from, count, seed, random_stream, nodes);
  PG_LAUNCH_CHECK("draw_nodes_kernel");
}

void square_keys_cuda(const SquareDraw& draw, int device, uintptr_t stream) {
  if (draw.count == 0) return;
  const DeviceGuard guard(device);
  square_keys_kernel<<<grid_for(draw.count), kBlockThreads, 0,
                       reinterpret_cast<cudaStream_t>(stream)>>>(draw);
  PG_LAUNCH_CHECK("square_keys_kernel");
}

}  // namespace peergraph
