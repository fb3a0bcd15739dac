#include "sampling/draws/draw_nodes.h"

#include "common/parallel.h"
#include "sampling/draws/draw_nodes.cuh"

namespace peergraph {
namespace {

constexpr int64_t kDrawsPerThread = 8192;

}  // namespace

void draw_nodes_cpu(const NodeDraw& from, int64_t count, uint64_t seed, uint64_t stream,
                    int64_t* nodes, int num_threads) {
  parallel_for(count, kDrawsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) nodes[i] = draw_node(from, seed, stream, i);
  });
}

void square_keys_cpu(const SquareDraw& draw, int num_threads) {
  parallel_for(draw.count, kDrawsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) draw.keys[i] = square_key(draw, i);
  });
}

}  // namespace peergraph
