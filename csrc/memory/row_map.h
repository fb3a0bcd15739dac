// From a user's id to where its row is stored: id -> internal row (IdMapView) -> tier, shard and
// local row (TierMap), without a per-row table.
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
  int32_t shard;  // meaningful on the sharded tier only
  int64_t local;  // row within the replica, the shard, the host part or the file
};

/// Rows [0, replicated) are on every rank, the next `sharded` rows are dealt to the shards in turn,
/// the next `host` rows are on the host, the rest is on disk.
struct TierMap {
  int64_t replicated = 0;
  int64_t sharded = 0;
  int64_t host = 0;
  int64_t rows = 0;
  int32_t num_shards = 1;

  PG_HD Location locate(int64_t row) const {
    if (row < replicated) return {Tier::kReplicated, 0, row};
    const int64_t behind = row - replicated;
    if (behind >= sharded) {
      const int64_t far = behind - sharded;
      return far < host ? Location{Tier::kHost, 0, far} : Location{Tier::kDisk, 0, far - host};
    }
    // A 32-bit division is several times cheaper on the GPU, and tables rarely need more.
    if (behind <= 0xffffffff) {
      const uint32_t narrow = static_cast<uint32_t>(behind);
      const uint32_t local = narrow / static_cast<uint32_t>(num_shards);
      return {Tier::kSharded, static_cast<int32_t>(narrow - local * num_shards), local};
    }
    const int64_t local = behind / num_shards;
    return {Tier::kSharded, static_cast<int32_t>(behind - local * num_shards), local};
  }
};

}  // namespace peergraph
