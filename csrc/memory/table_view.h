// The view of a table that kernels take by value.
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

  /// The address of a row; null where this processor cannot read the row's tier.
  PG_HD char* row(int64_t internal_row) const {
    const Location location = map.locate(internal_row);
    char* base = location.tier == Tier::kReplicated ? replicas[rank]
                 : location.tier == Tier::kSharded  ? shards[location.shard]
                 : location.tier == Tier::kHost     ? host
                                                    : disk;
    return base == nullptr ? nullptr : base + location.local * row_bytes;
  }

  /// The address of the row of a user's id.
  PG_HD char* find(int64_t id) const { return row(order(id)); }
};

}  // namespace peergraph
