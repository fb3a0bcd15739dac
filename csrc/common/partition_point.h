// Binary search, on the host and on a GPU.
#pragma once

#include "common/host_device.h"

namespace peergraph {

/// The first place from `begin` to `end` that is not before what is searched: is_before(place) is
/// true up to it and false from it on. `end` if it is true everywhere, as std::partition_point.
///
/// The last place for which it is true is the one before: that of the list that an item is in, by
/// the first item of each list.
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
