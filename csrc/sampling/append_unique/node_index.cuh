// The node index in kernels: many threads insert at once.
#pragma once

#include <cstdint>

#include "sampling/append_unique/node_index.h"

namespace peergraph {

/// The word of a node; inserts a new node with the word kUnknown. The table always has empty
/// cells.
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

/// Writes `word` unless the index holds a smaller word; node_index.h explains the order.
__device__ __forceinline__ void claim(const NodeIndex& index, int64_t tree, int64_t node,
                                      uint32_t word) {
  atomicMin(find_or_insert(index, tree, node), word);
}

}  // namespace peergraph
