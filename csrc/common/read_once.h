// Reads of users' memory on the host, where another thread may write meanwhile: each value is read
// exactly once, so that what was checked is what is used.
#pragma once

#include <cstdint>

namespace peergraph {

template <typename T>
inline T read_once(const T* at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}

/// As load_id.
inline int64_t load_id_once(const void* ids, int index_bytes, int64_t at) {
  return index_bytes == 4 ? read_once(static_cast<const int32_t*>(ids) + at)
                          : read_once(static_cast<const int64_t*>(ids) + at);
}

/// Whether 0 <= value < limit, with one comparison.
inline bool is_below(int64_t value, int64_t limit) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(limit);
}

}  // namespace peergraph
