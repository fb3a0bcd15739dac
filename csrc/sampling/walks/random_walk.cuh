// The steps of one walk, taken by a CPU thread, a GPU thread or a warp.
#pragma once

#include "common/ids.h"
#include "sampling/walks/random_walk.h"

namespace peergraph {

/// Picks a neighbour for a second-order step by rejection. The list of the previous node is
/// read only if the draw alone does not decide.
template <typename Contains>
PG_HD int64_t pick_biased(const CscView& csc, const Walks& walks, const Neighbors& list,
                          int64_t previous, int64_t walk, uint64_t stream,
                          const Contains& contains) {
  const bool likes_common = walks.accept_common > walks.accept_other;
  const uint64_t low = likes_common ? walks.accept_other : walks.accept_common;
  const uint64_t high = likes_common ? walks.accept_common : walks.accept_other;
  int64_t pick = 0;
  for (uint32_t t = 0; t < kMaxTries; ++t) {
    const uint32_t draw = 2 + 2 * t;
    const Philox4x32 block = draw_block(walks.seed, stream, static_cast<uint64_t>(walk), draw);
    pick = static_cast<int64_t>(scale_draw(block, draw, static_cast<uint64_t>(list.degree)));
    const uint64_t acceptance = draw_probability(block, draw + 1);
    if (acceptance < low && acceptance < walks.accept_return) break;
    const int64_t candidate = load_id(list.indices, csc.index_bytes, pick);
    if (candidate == previous) {
      if (acceptance < walks.accept_return) break;
    } else if (acceptance < low ||
               (acceptance < high && contains(csc, previous, candidate) == likes_common)) {
      break;
    }
  }
  return pick;
}

/// Takes the steps of this call for one walk. The lanes of a warp that share a walk compute the
/// same; one lane writes.
template <typename Contains>
PG_HD void take_steps(const CscView& csc, const Walks& walks, int64_t walk, bool writes,
                      const Contains& contains) {
  int64_t* nodes = walks.nodes + walk * (walks.length + 1);
  const int64_t start = nodes[0];
  int64_t here = walks.first_step == 0 ? walks.to_internal(start) : walks.positions[walk];
  int64_t shown = nodes[walks.first_step];
  int64_t previous = kEnded;  // none
  const int64_t end = walks.first_step + walks.steps;
  for (int64_t t = walks.first_step; t < end; ++t) {
    int64_t edge_id = -1;
    if (here != kEnded) {
      const uint64_t stream = walks.stream + static_cast<uint64_t>(t);
      const Philox4x32 block = draw_block(walks.seed, stream, static_cast<uint64_t>(walk), 0);
      const bool restarts =
          t > 0 && draw_probability(block, 0) < walks.restart_below && t % walks.restart_every == 0;
      const Neighbors list = restarts ? Neighbors{nullptr, 0, 0} : csc.neighbors(here);
      if (restarts && walks.jump) {
        here = walks.to_internal(start);
        shown = start;
        previous = kEnded;
      } else if (list.degree == 0) {
        here = kEnded;
      } else {
        const bool second_order = walks.biased && previous != kEnded && list.degree > 1;
        const int64_t pick =
            second_order
                ? pick_biased(csc, walks, list, previous, walk, stream, contains)
                : static_cast<int64_t>(scale_draw(block, 1, static_cast<uint64_t>(list.degree)));
        previous = here;
        here = load_id(list.indices, csc.index_bytes, pick);
        shown = walks.to_user(here);
        if (walks.edge_ids != nullptr) edge_id = csc.edge_id(list.edge_begin + pick);
      }
    }
    if (here == kEnded && !walks.stay) shown = -1;
    if (writes) {
      nodes[t + 1] = shown;
      if (walks.edge_ids != nullptr) walks.edge_ids[walk * walks.length + t] = edge_id;
    }
  }
  if (writes) walks.positions[walk] = here;
}

}  // namespace peergraph
