// Ids of 4 or 8 bytes in memory, as 64-bit values.
#pragma once

#include "common/fixed_width.h"
#include "common/host_device.h"

namespace peergraph {

PG_HD int64_t load_id(const void* ids, int index_bytes, int64_t at) {
  return index_bytes == 4 ? static_cast<const int32_t*>(ids)[at]
                          : static_cast<const int64_t*>(ids)[at];
}

PG_HD void store_id(void* ids, int index_bytes, int64_t at, int64_t id) {
  if (index_bytes == 4) {
    static_cast<int32_t*>(ids)[at] = static_cast<int32_t>(id);
  } else {
    static_cast<int64_t*>(ids)[at] = id;
  }
}

}  // namespace peergraph
