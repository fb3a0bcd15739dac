// One draw, by a CPU thread or a GPU thread.
#pragma once

#include "common/exact.h"
#include "common/exponential.h"
#include "sampling/draws/draw_nodes.h"

namespace peergraph {

PG_HD int64_t draw_node(const NodeDraw& from, uint64_t seed, uint64_t stream, int64_t position) {
  return from.node(draw_block(seed, stream, static_cast<uint64_t>(position), 0), 0);
}

PG_HD double square_key(const SquareDraw& draw, int64_t i) {
  const int64_t weight = draw.weights[i];
  if (weight <= 0) return double_of(0x7FF0000000000000ull);
  const auto node = static_cast<uint64_t>(draw.nodes[i]);
  const uint64_t random = draw_bits(draw_block(draw.seed, draw.stream, node, 0), 0);
  const auto w = static_cast<double>(weight);
  return divide_exact(exponential(random), multiply_exact(w, w));
}

}  // namespace peergraph
