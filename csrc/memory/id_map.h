// A renumbering of ids as kernels see it: an array of int32 or int64, or the identity.
#pragma once

#include "common/fixed_width.h"
#include "common/host_device.h"

namespace peergraph {

struct IdMapView {
  const void* values = nullptr;
  int32_t value_bytes = 0;  // 4 or 8; 0 is the identity

  PG_HD int64_t operator()(int64_t id) const {
    if (value_bytes == 4) return static_cast<const int32_t*>(values)[id];
    if (value_bytes == 8) return static_cast<const int64_t*>(values)[id];
    return id;
  }
};

}  // namespace peergraph
