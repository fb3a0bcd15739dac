// Probabilities as fixed-point numbers, so that CPU, GPU and the Python specification decide the
// same.
#pragma once

#include <cstdint>

#include "common/philox.h"

namespace peergraph {

/// The fixed-point number of the probability 1. A probability p is passed as floor(p * 2^53).
constexpr uint64_t kProbabilityOne = uint64_t{1} << 53;

/// Draws a number in 0 .. 2^53 - 1; it is below the fixed-point number of p with probability p.
PG_HD uint64_t draw_probability(const Philox4x32& block, uint32_t draw) {
  return scale_draw(block, draw, kProbabilityOne);
}

}  // namespace peergraph
