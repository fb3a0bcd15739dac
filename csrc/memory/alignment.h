// How the rows of a table are aligned.
#pragma once

#include <cstdint>

#include "memory/table_view.h"

namespace peergraph {

/// Bits that are set in the address of some row of the table or in the row size.
inline uint64_t alignment_bits(const TableView& table) {
  uint64_t bits = static_cast<uint64_t>(table.row_bytes) | reinterpret_cast<uintptr_t>(table.host);
  for (int r = 0; r < table.num_replicas; ++r)
    bits |= reinterpret_cast<uintptr_t>(table.replicas[r]);
  for (int s = 0; s < table.map.num_shards; ++s)
    bits |= reinterpret_cast<uintptr_t>(table.shards[s]);
  return bits;
}

}  // namespace peergraph
