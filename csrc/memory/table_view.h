// The view of a table that kernels get by value.
#pragma once

#include "common/fixed_width.h"
#include "memory/row_map.h"

namespace peergraph {

struct TableView {
  TierMap map;
  int64_t row_bytes = 0;
  int32_t rank = 0;                 // which replica this process reads
  int32_t num_replicas = 1;         // writers reach all of them
  char* replicas[kMaxShards] = {};  // [num_replicas] first row of each rank's replica
  char* shards[kMaxShards] = {};    // [map.num_shards] first row of each shard
  char* host = nullptr;
  char* disk = nullptr;  // mapped file; null where kernels run on a GPU
  IdMapView order;       // user id -> internal row

  /// Null for a row whose tier this processor cannot read.
  PG_HD char* row(int64_t internal_row) const {
    const Location at = map.locate(internal_row);
    char* base = at.tier == Tier::kReplicated ? replicas[rank]
                 : at.tier == Tier::kSharded  ? shards[at.shard]
                 : at.tier == Tier::kHost     ? host
                                              : disk;
    return base == nullptr ? nullptr : base + at.local * row_bytes;
  }

  /// The row of a user's id.
  PG_HD char* find(int64_t id) const { return row(order(id)); }
};

}  // namespace peergraph
