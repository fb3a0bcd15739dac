// Draws of nodes by weights that are the same on CPU and GPU, with and without replacement.
#pragma once

#include <cstdint>

#include "sampling/draws/node_draw.h"

namespace peergraph {

/// Draws with replacement: node i of [count] `nodes` by draw 0 of position i.
void draw_nodes_cpu(const NodeDraw& from, int64_t count, uint64_t seed, uint64_t stream,
                    int64_t* nodes, int num_threads);

/// Nodes with integer weights, of which some are to be drawn one after the other, each in
/// proportion to the square of its weight among those that are left.
struct SquareDraw {
  int64_t count = 0;
  const int64_t* nodes = nullptr;    // [count] a node's random number has its id as the position
  const int64_t* weights = nullptr;  // [count] a node of weight 0 or less is not drawn
  uint64_t seed = 0;
  uint64_t stream = 0;
  // [count]: the draw is in the order of these keys, exponentials divided by the squares
  // (Efraimidis and Spirakis 2006). Infinite for nodes that are not drawn.
  double* keys = nullptr;
};

void square_keys_cpu(const SquareDraw& draw, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`.
void draw_nodes_cuda(const NodeDraw& from, int64_t count, uint64_t seed, uint64_t random_stream,
                     int64_t* nodes, int device, uintptr_t stream);
void square_keys_cuda(const SquareDraw& draw, int device, uintptr_t stream);
#endif

}  // namespace peergraph
