// Binary search, on the host and on a GPU.
#pragma once

#include "common/host_device.h"

namespace peergraph {

/// Returns the first place in begin .. end - 1 for which is_before(place) is false, or `end` if
/// there is none, as std::partition_point. Places for which it is true must come before all others.
///
/// The result minus one is the last place for which it is true.
template <typename Place, typename IsBefore>
PG_HD Place partition_point(Place begin, Place end, const IsBefore& is_before) {
  while (begin < end) {
    const Place middle = begin + (end - begin) / 2;
    if (is_before(middle))
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

}  // namespace peergraph
