// The texts of the errors for ids out of range: the same from the CPU and the GPU.
#pragma once

#include <cstdint>
#include <string>

namespace peergraph {

/// What the id was meant to name.
enum class BadId : int32_t { kTableRow = 0, kSeed = 1 };

inline std::string bad_id_message(BadId what, int64_t position, int64_t id, int64_t limit) {
  const bool row = what == BadId::kTableRow;
  return (row ? "ids[" : "seeds[") + std::to_string(position) + "] = " + std::to_string(id) +
         " is out of range for " +
         (row ? "a table of " + std::to_string(limit) + " rows" : std::to_string(limit) + " nodes");
}

}  // namespace peergraph
