// The index from a node to its row in the sample (append unique, WholeGraph III-C2), as a view
// that kernels get by value: a direct map with one word per node; or, for disjoint samples, an
// open-addressing hash table with keys (tree, node).
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// The word of a node that no sample has written.
constexpr uint32_t kUnknown = 0xFFFFFFFFu;
constexpr int64_t kMaxSampleRows =
    0x7FFFFFFF;  // limit for nodes of one type, and for slots of one hop

/// A word minus `base` is an entry: a row (below first_claim); a claim, first_claim + the first
/// slot of this hop that holds the node; or unknown, which is greatest. So a minimum keeps a
/// known row, and of two claims the earlier one.
struct NodeIndex {
  uint32_t* direct = nullptr;  // [nodes] when not disjoint
  // Set by NodeMap, whose words hold an epoch; otherwise all words belong to this sample.
  uint32_t base = 0;
  uint32_t first_claim = 0x80000000u;
  // Direct maps of static shapes only: where the device keeps the base. Kernels read it by
  // `with_base`.
  const uint32_t* base_at = nullptr;

  static constexpr uint64_t kEmpty = ~uint64_t{0};
  uint64_t* keys = nullptr;  // [mask + 1]
  uint32_t* values = nullptr;
  uint64_t mask = 0;
  int32_t node_bits = 0;  // a key is tree << node_bits | node; at most 63 bits, so never kEmpty

  PG_HD uint32_t row_word(int64_t row) const { return base + static_cast<uint32_t>(row); }
  PG_HD uint32_t claim_word(int64_t slot) const {
    return base + first_claim + static_cast<uint32_t>(slot);
  }
  PG_HD bool is_row(uint32_t entry) const { return entry < first_claim; }

  PG_HD uint64_t key(int64_t tree, int64_t node) const {
    return (static_cast<uint64_t>(tree) << node_bits) | static_cast<uint64_t>(node);
  }

  /// The home cell of a key: the finalizer of splitmix64, which mixes every bit of the key
  /// into the low bits.
  PG_HD uint64_t home(uint64_t key) const {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBull;
    return (key ^ (key >> 31)) & mask;
  }

  /// The entry of a node that was inserted before.
  PG_HD uint32_t get(int64_t tree, int64_t node) const {
    if (direct != nullptr) return direct[node] - base;
    return values[find(key(tree, node))];
  }

  /// The entry of a node; kUnknown if the node was not inserted.
  PG_HD uint32_t look_up(int64_t tree, int64_t node) const {
    if (direct != nullptr) return direct[node] - base;
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

  /// The word of a node; inserts a new node with the word kUnknown. For one thread only.
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

#ifdef __CUDACC__
/// The index with its base, in registers. A kernel that writes the base must not call it: the load
/// may move before writes.
__device__ __forceinline__ NodeIndex with_base(const NodeIndex& given) {
  NodeIndex index = given;
  if (index.base_at != nullptr) index.base = __ldg(index.base_at);
  return index;
}

/// The word of a node, where many threads insert at once; inserts a new node with the word
/// kUnknown. The table always has empty cells.
__device__ __forceinline__ uint32_t* find_or_insert(const NodeIndex& index, int64_t tree,
                                                    int64_t node) {
  if (index.direct != nullptr) return index.direct + node;
  const uint64_t wanted = index.key(tree, node);
  uint64_t at = index.home(wanted);
  while (true) {
    auto* cell = reinterpret_cast<unsigned long long*>(index.keys + at);
    uint64_t seen = *static_cast<volatile unsigned long long*>(cell);
    if (seen == NodeIndex::kEmpty) seen = atomicCAS(cell, NodeIndex::kEmpty, wanted);
    if (seen == NodeIndex::kEmpty || seen == wanted) return index.values + at;
    at = (at + 1) & index.mask;
  }
}

/// Writes `word` unless the index holds a smaller word; NodeIndex explains the order.
__device__ __forceinline__ void claim(const NodeIndex& index, int64_t tree, int64_t node,
                                      uint32_t word) {
  atomicMin(find_or_insert(index, tree, node), word);
}
#endif

}  // namespace peergraph
