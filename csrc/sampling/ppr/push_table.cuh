// The state of one seed's forward push on a GPU: a hash table from nodes to residuals and
// estimates, and lists of its cells. A block works on it.
#pragma once

#include <cstdint>

#include "sampling/ppr/forward_push.h"

namespace peergraph {

constexpr uint64_t kEmptyCell = ~uint64_t{0};
constexpr uint32_t kNoCell = 0xFFFFFFFFu;
constexpr int kMostLongLists = 32;

/// The sizes of a table. Sorting needs `cells` to be at least the power of two above most_pushed.
struct PushSizes {
  int64_t cells = 0;
  uint32_t most_nodes = 0;   // most cells in use
  uint32_t most_pushed = 0;  // most nodes that are pushed

  int64_t bytes() const {
    return cells * (3 * 8 + 4) + int64_t{most_nodes} * 4 + int64_t{most_pushed} * (8 + 3 * 4);
  }
};

/// What the threads of a block count together; in shared memory.
struct PushCounts {
  uint32_t inserted;
  uint32_t pushed;
  uint32_t due[2];
  uint32_t long_lists;
  uint32_t is_full;
  uint32_t long_list[kMostLongLists];  // places in the list of due nodes
};

__device__ __forceinline__ uint64_t add_atomically(uint64_t* sum, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  return atomicAdd(reinterpret_cast<unsigned long long*>(sum),
                   static_cast<unsigned long long>(value));
}

struct PushTable {
  PushSizes sizes;
  uint64_t* nodes;      // [cells] internal ids; kEmptyCell
  uint64_t* residuals;  // [cells]
  uint64_t* estimates;  // [cells]
  uint64_t* shares;     // [most_pushed] of the due nodes
  uint32_t* degrees;    // [cells]
  uint32_t* inserted;   // [most_nodes] the cells in use
  uint32_t* pushed;     // [most_pushed] the cells with an estimate
  uint32_t* due_lists;  // [2, most_pushed] the cells to push in this round and in the next
  PushCounts* counts;

  __device__ PushTable(void* memory, const PushSizes& of, PushCounts* in_shared)
      : sizes(of), counts(in_shared) {
    nodes = static_cast<uint64_t*>(memory);
    residuals = nodes + sizes.cells;
    estimates = residuals + sizes.cells;
    shares = estimates + sizes.cells;
    degrees = reinterpret_cast<uint32_t*>(shares + sizes.most_pushed);
    inserted = degrees + sizes.cells;
    pushed = inserted + sizes.most_nodes;
    due_lists = pushed + sizes.most_pushed;
  }

  __device__ uint32_t* due(int round) const { return due_lists + round * sizes.most_pushed; }

  __device__ void empty_cell(int64_t cell) const {
    nodes[cell] = kEmptyCell;
    residuals[cell] = 0;
    estimates[cell] = 0;
    degrees[cell] = kUnknownDegree;
  }

  __device__ void empty_all() const {
    for (int64_t c = threadIdx.x; c < sizes.cells; c += blockDim.x) empty_cell(c);
  }

  __device__ void mark_full() const { *static_cast<volatile uint32_t*>(&counts->is_full) = 1; }

  /// The cell of a node, where many threads insert at once; kNoCell if the table is full.
  __device__ uint32_t find_or_insert(int64_t node) const {
    const auto key = static_cast<uint64_t>(node);
    uint64_t mixed = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    auto at = static_cast<int64_t>(
        mul_high_u64(mixed ^ (mixed >> 31), static_cast<uint64_t>(sizes.cells)));
    while (*static_cast<volatile uint32_t*>(&counts->is_full) == 0) {
      auto* cell = reinterpret_cast<unsigned long long*>(nodes + at);
      uint64_t seen = *static_cast<volatile unsigned long long*>(cell);
      if (seen == kEmptyCell) {
        seen = atomicCAS(cell, kEmptyCell, key);
        if (seen == kEmptyCell) {
          const uint32_t place = atomicAdd(&counts->inserted, 1u);
          if (place >= sizes.most_nodes) break;
          inserted[place] = static_cast<uint32_t>(at);
          return static_cast<uint32_t>(at);
        }
      }
      if (seen == key) return static_cast<uint32_t>(at);
      if (++at == sizes.cells) at = 0;
    }
    mark_full();
    return kNoCell;
  }

  /// Appends a cell to a list of most_pushed cells.
  __device__ void append(uint32_t* list, uint32_t* count, uint32_t cell) const {
    const uint32_t place = atomicAdd(count, 1u);
    if (place < sizes.most_pushed)
      list[place] = cell;
    else
      mark_full();
  }

  /// Adds to the residual of a node. If it reaches the threshold, the node is due next. The
  /// thresholds of nodes that are new in this round are unknown, so these are never due here.
  __device__ void add(int64_t node, uint64_t share, uint64_t epsilon, int next) const {
    const uint32_t cell = find_or_insert(node);
    if (cell == kNoCell) return;
    const uint64_t before = add_atomically(residuals + cell, share);
    const uint64_t threshold = push_threshold(epsilon, degrees[cell]);
    if (before < threshold && before + share >= threshold)
      append(due(next), &counts->due[next], cell);
  }
};

}  // namespace peergraph
