// Writing of a sampled edge to its slot, for all kernels that sample.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "sampling/append_unique/node_index.h"
#include "sampling/common/hop.h"
#include "store/csc_view.h"

namespace peergraph {

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
  claim(sources, hop.tree(target), source, sources.claim_word(slot));
}

/// Stores the number of edges of a target for the scan of the offsets, if slots are reserved;
/// with dense slots the offsets are known already.
__device__ __forceinline__ void store_count(const Hop& hop, int64_t target, int64_t count) {
  if (hop.stride == 0) return;
  hop.offsets[target] = count;
  if (target == 0) hop.offsets[hop.num_targets] = 0;
}

}  // namespace peergraph
