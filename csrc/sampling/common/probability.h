// Probabilities as integers, so that CPU, GPU and the plain Python specification decide alike.
#pragma once

#include <cstdint>

#include "common/philox.h"

namespace peergraph {

/// A probability p is passed as floor(p * 2^53): every double in [0, 1] loses nothing that matters.
constexpr uint64_t kCertain = uint64_t{1} << 53;

/// A number from 0 .. 2^53 - 1; it is below p's integer with probability p.
PG_HD uint64_t draw_chance(const Philox4x32& block, uint32_t draw) {
  return scale_draw(block, draw, kCertain);
}

}  // namespace peergraph
