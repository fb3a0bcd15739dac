// Capacities that a sample allocates before its size is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "sampling/khop/khop.h"

namespace peergraph {

inline int bit_width(uint64_t value) {
  int bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

/// Bits of the node id in the keys of a disjoint sample.
inline int disjoint_key_bits(const NodeTypeSpec& type, int64_t num_trees) {
  const int node_bits = bit_width(static_cast<uint64_t>(std::max<int64_t>(type.num_nodes, 1)));
  PG_CHECK_ARG(node_bits + bit_width(static_cast<uint64_t>(num_trees)) <= 63,
               "a disjoint sample cannot tell " + std::to_string(num_trees) + " seeds and the " +
                   std::to_string(type.num_nodes) + " nodes of type '" + type.name +
                   "' apart in 63 bits: use fewer seeds at a time");
  return node_bits;
}

/// Cells of a hash table for `keys` keys: a power of two, at most half full.
inline int64_t hash_table_size(int64_t keys) {
  return int64_t{1} << std::max(8, bit_width(static_cast<uint64_t>(2 * keys)));
}

/// The fanout, or -1 if it covers every list: no node has more neighbours than there are edges,
/// so huge fanouts need no work space. Walks may visit more nodes than there are edges to them.
inline int64_t draws_per_target(const RelationSpec& relation, int64_t fanout) {
  const bool from_list = !relation.choice.replace && !relation.visits;
  return from_list && fanout >= relation.csc.num_edges ? -1 : fanout;
}

/// Returns whether the GPU reserves `fanout` slots for each target instead of counting the edges
/// first. It does so for small hops, and for hops in which most targets probably use their slots.
inline bool reserves_by_fanout(int64_t num_targets, int64_t fanout) {
  constexpr int64_t kSmallReservation = int64_t{1} << 22;
  constexpr int64_t kLargeReservation = int64_t{1} << 28;
  constexpr int64_t kReservedFanout = 64;
  const int64_t slots = fanout < 0 ? 0 : num_targets * fanout;
  return fanout > 0 &&
         (slots <= kSmallReservation || (slots <= kLargeReservation && fanout <= kReservedFanout));
}

}  // namespace peergraph
