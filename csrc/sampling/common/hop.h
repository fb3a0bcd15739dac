// One hop by one relation, as PODs that kernels get by value, and how kernels write its edges.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ids.h"
#include "common/philox.h"
#include "sampling/append_unique/node_index.h"
#include "store/csc_view.h"

namespace peergraph {

/// The nodes of one type that the sample has found so far.
struct NodeList {
  int64_t* ids = nullptr;    // [capacity] internal ids
  int32_t* trees = nullptr;  // [capacity] index of the seed that the node belongs to; disjoint only
  int64_t count = 0;
  int64_t capacity = 0;
  // Static shapes only: how many rows from `count` on are used already.
  const int64_t* found = nullptr;
  int64_t padding_row = 0;  // static shapes only: the row that stands for dropped nodes
  NodeIndex index;

  PG_HD int64_t tree(int64_t row) const { return trees == nullptr ? 0 : trees[row]; }
};

/// A part of a neighbour list.
struct ListPart {
  int64_t begin = 0;
  int64_t degree = 0;
};

/// The times of the seeds, by tree.
struct SeedTimes {
  const int64_t* last = nullptr;   // the seed's own; null: the sample does not depend on times
  const int64_t* first = nullptr;  // where neighbours begin; null: at the beginning of time
};

/// One hop by one relation. Its edges are in slots: the edges of target t begin at slot t *
/// stride if slots are reserved by the fanout, or at slot offsets[t] if slots are dense (stride
/// 0).
struct Hop {
  RandomStream random;
  int64_t fanout = 0;  // -1: all
  int64_t first_target = 0;
  int64_t num_targets = 0;
  const int64_t* targets = nullptr;       // [num_targets] internal ids; -1: padding
  const int32_t* target_trees = nullptr;  // [num_targets] disjoint only
  const int32_t* positions = nullptr;  // [num_targets] position among the targets without padding
  SeedTimes seed_times;                // for temporal sampling only
  // [num_targets] on CUDA: what the seed's time admits of each list; null: whole lists, or parts
  // that are not contiguous.
  ListPart* parts = nullptr;
  int64_t stride = 0;
  int64_t slots = 0;
  int64_t* offsets = nullptr;  // [num_targets + 1] first edge of each target
  // [slots] of index_bytes; -1: unused slot. Internal ids until the new nodes are appended,
  // then rows.
  void* sources = nullptr;
  int32_t index_bytes = 4;      // size of a source in a slot
  int64_t* edge_ids = nullptr;  // [slots] when asked for
  uint32_t* owners = nullptr;   // [slots] target of each slot, for dense slots on CUDA
  // Slots with sources of the same type, of the relations before this one that are sampled at
  // once with it. They lie before this hop's slots.
  int64_t slots_before = 0;
  bool looked_up_later = true;  // whether the index is read for the new nodes of this hop later
  int64_t num_edges = 0;

  PG_HD int64_t edges_of(int64_t degree) const {
    return fanout < 0 || degree < fanout ? degree : fanout;
  }
  PG_HD int64_t first_slot(int64_t target) const {
    return stride > 0 ? target * stride : offsets[target];
  }
  PG_HD int64_t tree(int64_t target) const {
    return target_trees == nullptr ? 0 : target_trees[target];
  }
  /// The target whose slot this is.
  PG_HD int64_t owner(uint32_t slot) const {
    return stride > 0 ? slot / static_cast<uint32_t>(stride) : owners[slot];
  }
  /// The tree of the edge in a slot; the owner is looked up only if there are several trees.
  PG_HD int64_t tree_of(uint32_t slot) const {
    return target_trees == nullptr ? 0 : target_trees[owner(slot)];
  }
  /// On CUDA, the mark of a slot whose node is also the node of an earlier slot, `first`; its
  /// own inverse. `first` counts the slots of all relations that are sampled at once. The mark is
  /// below -1, the mark of an unused slot, and fits 32 bits, as there are fewer than 2^31 slots.
  PG_HD static int64_t repeats(int64_t first) { return -2 - first; }
  /// The position that tells the random numbers of targets apart.
  PG_HD int64_t position(int64_t target) const {
    return positions == nullptr ? target : positions[target];
  }
  PG_HD int64_t degree(const CscView& csc, int64_t target) const {
    if (parts != nullptr) return parts[target].degree;
    return targets[target] < 0 ? 0 : csc.degree(targets[target]);
  }
  PG_HD Neighbors whole_list(const CscView& csc, int64_t target) const {
    return targets[target] < 0 ? Neighbors{nullptr, 0, 0} : csc.neighbors(targets[target]);
  }
  PG_HD Neighbors neighbors(const CscView& csc, int64_t target) const {
    const Neighbors list = whole_list(csc, target);
    return parts == nullptr ? list : part_of(csc, list, parts[target]);
  }
  PG_HD static Neighbors part_of(const CscView& csc, const Neighbors& list, const ListPart& part) {
    return {static_cast<const char*>(list.indices) + part.begin * csc.index_bytes, part.degree,
            list.edge_begin + part.begin};
  }
};

/// The memory that the edges of a hop are written to.
struct EdgeOutput {
  void* row = nullptr;
  void* col = nullptr;
  int64_t* edge_ids = nullptr;
  int32_t* duplicates = nullptr;  // [nodes] of the source type
  int64_t begin = 0;              // the hop's first edge
  int64_t capacity = INT64_MAX;   // edges that there is memory for
  int64_t padding_id = -1;        // the edge id of padding edges
  int32_t index_bytes = 8;
};

#ifdef __CUDACC__
/// Writes one edge to its slot. `source` is the id or the row of its source.
__device__ __forceinline__ void write_slot(const CscView& csc, const Hop& hop,
                                           const Neighbors& list, int64_t target, int64_t slot,
                                           int64_t pick, int64_t source) {
  store_id(hop.sources, hop.index_bytes, slot, source);
  if (hop.edge_ids != nullptr) hop.edge_ids[slot] = csc.edge_id(list.edge_begin + pick);
  if (hop.owners != nullptr) hop.owners[slot] = static_cast<uint32_t>(target);
}

/// Writes one sampled edge to its slot and claims its source for the slot. Drops edges beyond
/// `hop.slots`, which only static shapes have.
__device__ __forceinline__ void write_edge(const CscView& csc, const Hop& hop,
                                           const NodeIndex& sources, const Neighbors& list,
                                           int64_t target, int64_t slot, int64_t pick) {
  if (slot >= hop.slots) return;
  const int64_t source = load_id(list.indices, csc.index_bytes, pick);
  write_slot(csc, hop, list, target, slot, pick, source);
  claim(sources, hop.tree(target), source, with_base(sources).claim_word(hop.slots_before + slot));
}

/// Stores the number of edges of a target for the scan of the offsets, if slots are reserved;
/// with dense slots the offsets are known already.
__device__ __forceinline__ void store_count(const Hop& hop, int64_t target, int64_t count) {
  if (hop.stride > 0) hop.offsets[target] = count;
}
#endif

}  // namespace peergraph
