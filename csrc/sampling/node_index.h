// Node -> its row in the sample (append unique, WholeGraph III-C2), as a view that kernels get by
// value: a direct map with one word per node, or, for disjoint samples, whose key is (tree, node),
// an open-addressing hash table.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// A word of the index: the node's row (below 2^31), or kPending | the first slot of this hop that
/// holds the node, or kUnknown. The order of these values is such that a minimum keeps what is
/// already known, and of two claims the earlier one.
constexpr uint32_t kUnknown = 0xFFFFFFFFu;
constexpr uint32_t kPending = 0x80000000u;
constexpr int64_t kMaxSampleRows = 0x7FFFFFFF;  // of nodes of one type, and of slots of one hop

struct NodeIndex {
  uint32_t* direct = nullptr;  // [nodes] when not disjoint

  static constexpr uint64_t kEmpty = ~uint64_t{0};
  uint64_t* keys = nullptr;  // [mask + 1]
  uint32_t* values = nullptr;
  uint64_t mask = 0;
  int32_t node_bits = 0;  // a key is tree << node_bits | node; at most 63 bits, so never kEmpty

  PG_HD uint64_t key(int64_t tree, int64_t node) const {
    return (static_cast<uint64_t>(tree) << node_bits) | static_cast<uint64_t>(node);
  }

  /// The last step of splitmix64: every bit of the key reaches the low bits.
  PG_HD uint64_t home(uint64_t key) const {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBull;
    return (key ^ (key >> 31)) & mask;
  }

  /// The word of a node that was inserted before.
  PG_HD uint32_t get(int64_t tree, int64_t node) const {
    if (direct != nullptr) return direct[node];
    return values[find(key(tree, node))];
  }

  /// The word of a node, kUnknown for one that was not inserted.
  PG_HD uint32_t look_up(int64_t tree, int64_t node) const {
    if (direct != nullptr) return direct[node];
    const uint64_t wanted = key(tree, node);
    uint64_t at = home(wanted);
    while (keys[at] != wanted) {
      if (keys[at] == kEmpty) return kUnknown;
      at = (at + 1) & mask;
    }
    return values[at];
  }

  /// Replaces the word of a node that was inserted before.
  PG_HD void set(int64_t tree, int64_t node, uint32_t word) const {
    if (direct != nullptr)
      direct[node] = word;
    else
      values[find(key(tree, node))] = word;
  }

  /// The word of a node, inserted as kUnknown when it is new. One thread only.
  uint32_t& insert(int64_t tree, int64_t node) const {
    if (direct != nullptr) return direct[node];
    const uint64_t wanted = key(tree, node);
    uint64_t at = home(wanted);
    while (keys[at] != kEmpty && keys[at] != wanted) at = (at + 1) & mask;
    keys[at] = wanted;
    return values[at];
  }

 private:
  PG_HD uint64_t find(uint64_t wanted) const {
    uint64_t at = home(wanted);
    while (keys[at] != wanted) at = (at + 1) & mask;
    return at;
  }
};

}  // namespace peergraph
