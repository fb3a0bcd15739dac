// The view of a table, and how it finds the address of a user's id: id -> internal row (IdMapView)
// -> tier, shard and row within the shard (TierMap), without a per-row table.
#pragma once

#include "common/fixed_width.h"
#include "common/host_device.h"

namespace peergraph {

/// A renumbering of ids: an array of int32 or int64, or the identity.
struct IdMapView {
  const void* values = nullptr;
  int32_t value_bytes = 0;  // 4 or 8; 0 is the identity

  PG_HD int64_t operator()(int64_t id) const {
    if (value_bytes == 4) return static_cast<const int32_t*>(values)[id];
    if (value_bytes == 8) return static_cast<const int64_t*>(values)[id];
    return id;
  }
};

constexpr int kMaxShards = 32;

enum class Tier : int32_t { kReplicated = 0, kSharded = 1, kHost = 2, kDisk = 3 };

struct Location {
  Tier tier;
  int32_t shard;  // on the sharded tier only
  int64_t local;  // row within the replica, the shard, the host part or the file
};

/// Rows [0, replicated) are on every rank, the next `sharded` rows are split over the shards, the
/// next `host` rows are in host memory, the remaining rows are on disk.
///
/// Sharded row j is row j / num_shards of shard j % num_shards (round robin), or, where block_rows
/// is not 0, row j % block_rows of shard j / block_rows (contiguous blocks).
struct TierMap {
  int64_t replicated = 0;
  int64_t sharded = 0;
  int64_t host = 0;
  int64_t rows = 0;
  int32_t num_shards = 1;
  int64_t block_rows = 0;

  PG_HD Location locate(int64_t row) const {
    if (row < replicated) return {Tier::kReplicated, 0, row};
    const int64_t in_shards = row - replicated;
    if (in_shards >= sharded) {
      const int64_t on_host = in_shards - sharded;
      return on_host < host ? Location{Tier::kHost, 0, on_host}
                            : Location{Tier::kDisk, 0, on_host - host};
    }
    const int64_t divisor = block_rows > 0 ? block_rows : num_shards;
    int64_t quotient, remainder;
    // A 32-bit division is several times faster on a GPU, and tables rarely need more.
    if (((in_shards | divisor) >> 32) == 0) {
      const uint32_t short_quotient =
          static_cast<uint32_t>(in_shards) / static_cast<uint32_t>(divisor);
      quotient = short_quotient;
      remainder =
          static_cast<uint32_t>(in_shards) - short_quotient * static_cast<uint32_t>(divisor);
    } else {
      quotient = in_shards / divisor;
      remainder = in_shards - quotient * divisor;
    }
    return block_rows > 0 ? Location{Tier::kSharded, static_cast<int32_t>(quotient), remainder}
                          : Location{Tier::kSharded, static_cast<int32_t>(remainder), quotient};
  }

  /// How many sharded rows, from `in_shards` on (counted from the first sharded row), are stored
  /// one after the other in one shard.
  PG_HD int64_t contiguous_rows(int64_t in_shards) const {
    if (num_shards == 1) return sharded - in_shards;
    if (block_rows == 0) return 1;
    const int64_t block_left = block_rows - in_shards % block_rows;
    return block_left < sharded - in_shards ? block_left : sharded - in_shards;
  }
};

/// The view of a table that kernels take by value.
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
