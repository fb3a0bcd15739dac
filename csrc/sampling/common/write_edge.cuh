// How kernels leave a sampled edge, whatever chose it.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "sampling/append_unique/node_index.cuh"
#include "sampling/common/hop.h"
#include "store/csc_view.h"

namespace peergraph {

/// Writes one edge to its slot; `source` is its source's id or row.
__device__ __forceinline__ void write_slot(const CscView& csc, const Hop& hop,
                                           const Neighbors& list, int64_t target, int64_t slot,
                                           int64_t pick, int64_t source) {
  store_id(hop.sources, hop.index_bytes, slot, source);
  if (hop.edge_ids != nullptr) hop.edge_ids[slot] = csc.edge_id(list.edge_begin + pick);
  if (hop.owners != nullptr) hop.owners[slot] = static_cast<uint32_t>(target);
}

/// Writes one sampled edge to its slot and claims the source for it. Where the slots were reserved
/// for fewer edges than there are (samples of a fixed shape), those behind are dropped.
__device__ __forceinline__ void emit_edge(const CscView& csc, const Hop& hop,
                                          const NodeIndex& sources, const Neighbors& list,
                                          int64_t target, int64_t slot, int64_t pick) {
  if (slot >= hop.slots) return;
  const int64_t source = load_id(list.indices, csc.index_bytes, pick);
  write_slot(csc, hop, list, target, slot, pick, source);
  claim(sources, hop.tree(target), source, sources.claim_word(slot));
}

/// With reserved slots nobody has counted before: leaves the count for the scan.
__device__ __forceinline__ void leave_count(const Hop& hop, int64_t target, int64_t count) {
  if (hop.stride == 0) return;
  hop.offsets[target] = count;
  if (target == 0) hop.offsets[hop.num_targets] = 0;
}

}  // namespace peergraph
