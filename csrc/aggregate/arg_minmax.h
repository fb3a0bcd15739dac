// Selects the extremum of two messages.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// A message and its position; position -1 means that there is no message.
template <typename Value>
struct Best {
  Value value = 0;
  int64_t position = -1;

  /// Takes `other` if it is better. NaN is better than numbers, as in torch; of equal values the
  /// one at the first position is better.
  PG_HD void offer(const Best& other, bool minimum) {
    if (other.position < 0) return;
    const bool other_nan = other.value != other.value, nan = value != value;
    const bool better = minimum ? other.value < value : other.value > value;
    const bool equal = other.value == value || (nan && other_nan);
    if (position < 0 || (other_nan && !nan) || (better && !nan) ||
        (equal && other.position < position))
      *this = other;
  }
};

}  // namespace peergraph
