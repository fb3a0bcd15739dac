// The view of one relation's structure (CSC: in-neighbours by destination) that kernels get by
// value. Destinations are internal ids of the destination type, spread over tiers like a table.
#pragma once

#include "common/fixed_width.h"
#include "memory/table_view.h"

namespace peergraph {

/// The destinations that one replica, shard, host part or file holds.
struct CscPart {
  int64_t* indptr = nullptr;      // [local rows + 1]
  void* indices = nullptr;        // [edges of the part] internal source ids, index_bytes each
  int64_t* edge_begin = nullptr;  // [local rows] the row's first position in the user's CSC order
};

struct Neighbors {
  const void* indices;  // first in-neighbour, index_bytes each
  int64_t degree;
  int64_t edge_begin;
};

struct CscView {
  TierMap map;
  int32_t index_bytes = 4;  // 4 or 8
  int32_t rank = 0;
  int32_t num_replicas = 1;
  CscPart replicas[kMaxShards];
  CscPart shards[kMaxShards];
  CscPart host;
  CscPart disk;  // mapped file, for the CPU only
  int64_t num_edges = 0;
  // Destination -> row; the identity unless the structure has a row order of its own.
  IdMapView order;
  // CSC position -> the user's edge id; map.rows == 0: they are equal.
  TableView edge_ids;

  PG_HD const CscPart& part(const Location& at) const {
    return at.tier == Tier::kReplicated ? replicas[rank]
           : at.tier == Tier::kSharded  ? shards[at.shard]
           : at.tier == Tier::kHost     ? host
                                        : disk;
  }

  PG_HD Location locate(int64_t destination) const { return map.locate(order(destination)); }

  PG_HD int64_t degree(int64_t destination) const {
    const Location at = locate(destination);
    const int64_t* indptr = part(at).indptr + at.local;
    return indptr[1] - indptr[0];
  }

  PG_HD Neighbors neighbors(int64_t destination) const {
    const Location at = locate(destination);
    const CscPart& p = part(at);
    const int64_t begin = p.indptr[at.local];
    return {static_cast<const char*>(p.indices) + begin * index_bytes,
            p.indptr[at.local + 1] - begin, p.edge_begin[at.local]};
  }

  /// The user's id of the edge at `position` of the user's CSC order.
  PG_HD int64_t edge_id(int64_t position) const {
    if (edge_ids.map.rows == 0) return position;
    const char* at = edge_ids.row(position);
    return edge_ids.row_bytes == 4 ? *reinterpret_cast<const int32_t*>(at)
                                   : *reinterpret_cast<const int64_t*>(at);
  }
};

}  // namespace peergraph
