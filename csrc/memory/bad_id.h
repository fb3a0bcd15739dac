// The errors for ids out of range, the same on the CPU and the GPU, for samples of a static shape
// that exceed their bounds, and for tensors that were written unseen.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace peergraph {

/// The kind of a bad id, or the bound that was too small: "position" is then the hop, and "id" the
/// number that was needed. Of tensors that were written nothing else is reported.
enum class BadId : int32_t {
  kTableRow = 0,
  kSeed = 1,
  kSeedCount = 2,
  kNodes = 3,
  kEdges = 4,
  kEdgeIndex = 5,
  kEdgeType = 6
};

inline bool is_write(BadId what) { return what == BadId::kEdgeIndex || what == BadId::kEdgeType; }

inline std::string write_message(BadId what) {
  const std::string name = what == BadId::kEdgeIndex ? "edge_index" : "edge_type or x";
  return name +
         " was written in a way that torch does not count (.data, DLPack, CuPy, a kernel, the "
         "replay of a CUDA graph): layers on the GPU have used the earlier values since. Write "
         "with copy_() or another in-place operation of the tensor itself, or pass a new tensor; "
         "from now on the values are read anew";
}

inline std::string bad_id_message(BadId what, int64_t position, int64_t id, int64_t limit) {
  const bool row = what == BadId::kTableRow;
  return (row ? "ids[" : "seeds[") + std::to_string(position) + "] = " + std::to_string(id) +
         " is out of range for " +
         (row ? "a table of " + std::to_string(limit) + " rows" : std::to_string(limit) + " nodes");
}

/// IndexError for a bad id, OverflowError for a bound, RuntimeError for a write.
[[noreturn]] inline void throw_bad_id(BadId what, int64_t position, int64_t id, int64_t limit) {
  const std::string wanted = std::to_string(id), room = std::to_string(limit);
  switch (what) {
    case BadId::kSeedCount:
      throw std::out_of_range("num_seeds: expected 0 .. " + room + ", got " + wanted);
    case BadId::kNodes:
      throw std::overflow_error("max_nodes: hop " + std::to_string(position) + " found " + wanted +
                                " new nodes of a type, there is room for " + room);
    case BadId::kEdges:
      throw std::overflow_error("max_edges: hop " + std::to_string(position) + " sampled " +
                                wanted + " edges of a relation, there is room for " + room);
    case BadId::kEdgeIndex:
    case BadId::kEdgeType:
      throw std::runtime_error(write_message(what));
    default:
      throw std::out_of_range(bad_id_message(what, position, id, limit));
  }
}

}  // namespace peergraph
