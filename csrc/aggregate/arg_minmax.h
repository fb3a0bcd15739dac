// Which of two messages is the extremum.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// A message and its position; position -1 stands for none.
template <typename Value>
struct Best {
  Value value = 0;
  int64_t position = -1;

  /// Takes `other` if it is better: NaN before numbers, as in torch; of equals the first position.
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
