// Draws of nodes with replacement, uniformly or by integer weights.
#pragma once

#include <cstdint>

#include "common/partition_point.h"
#include "common/philox.h"

namespace peergraph {

/// A distribution of nodes.
struct NodeDraw {
  int64_t num_nodes = 0;
  const int64_t* ends = nullptr;   // [num_nodes] running sum of integer weights; null: uniform
  const int64_t* times = nullptr;  // [num_nodes]; null: any node fits
  int64_t earliest = 0;            // the node to take if no try is early enough

  PG_HD bool fits(int64_t node, int64_t latest) const {
    return times == nullptr || times[node] <= latest;
  }

  PG_HD int64_t node(const Philox4x32& block, uint32_t draw) const {
    if (ends == nullptr)
      return static_cast<int64_t>(scale_draw(block, draw, static_cast<uint64_t>(num_nodes)));
    const auto total = static_cast<uint64_t>(ends[num_nodes - 1]);
    const auto at = static_cast<int64_t>(scale_draw(block, draw, total));
    return partition_point(int64_t{0}, num_nodes - 1, [&](int64_t i) { return ends[i] <= at; });
  }
};

}  // namespace peergraph
