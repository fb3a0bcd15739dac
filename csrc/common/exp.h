// exp of many values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/pack.h"

namespace peergraph {

/// exp of each lane, within 2 units of the last place; the same for any width of vectors.
template <int kLanes, int kBytes>
PG_INLINE void exp_of(WidePack<float, kLanes, kBytes>* pack) {
  using Floats = WidePack<float, kLanes, kBytes>;
  using Part = typename Floats::Part;
  using Bits = typename Floats::template PartOf<int32_t>;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Floats least, most;
  least.fill(-104.0f);  // below it 0, above the other infinity
  most.fill(89.0f);
  for (int i = 0; i < Floats::kParts; ++i) {
    Part x = pack->part[i];
    x = x < least.part[i] ? least.part[i] : x;
    x = x > most.part[i] ? most.part[i] : x;
    const Part shifted = x * 1.44269504088896341f + kRound;
    const Part n = shifted - kRound;
    const Part r = x - n * 0.693359375f - n * -2.12194440e-4f;
    Part y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    // 2^n in two steps, for results that are subnormal or that overflow.
    Bits power;
    std::memcpy(&power, &shifted, sizeof(power));
    power -= 0x4b400000;
    const Bits half = power >> 1;
    const Bits first = (half + 127) << 23, second = (power - half + 127) << 23;
    Part factor;
    std::memcpy(&factor, &first, sizeof(factor));
    y *= factor;
    std::memcpy(&factor, &second, sizeof(factor));
    pack->part[i] = y * factor;
  }
}

/// Replaces `count` values by their exp. A value's result does not depend on its position.
template <int kBytes>
PG_INLINE void exp_all(float* values, int64_t count) {
  // GCC compares wider vectors lane by lane.
  WidePack<float, 16, std::min(kBytes, 32)> pack;
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) {
    pack.load(values + at);
    exp_of(&pack);
    pack.store(values + at);
  }
  if (at == count) return;
  float rest[16] = {};
  for (int64_t i = at; i < count; ++i) rest[i - at] = values[i];
  pack.load(rest);
  exp_of(&pack);
  pack.store(rest);
  for (int64_t i = at; i < count; ++i) values[i] = rest[i - at];
}

template <int kBytes>
PG_INLINE void exp_all(double* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = std::exp(values[i]);
}

}  // namespace peergraph
