#include "sampling/walks/random_walk.h"

#include <stdexcept>
#include <string>

#include "common/parallel.h"
#include "common/read_once.h"
#include "sampling/common/contains.cuh"
#include "sampling/walks/random_walk.cuh"

namespace peergraph {
namespace {

constexpr int64_t kWalksPerThread = 256;

/// Raises IndexError for a walk that is at no node of the relation's destinations.
void check_start(const CscView& csc, const Walks& walks, int64_t walk) {
  const int64_t start = walks.nodes[walk * (walks.length + 1)];
  const int64_t here = walks.first_step == 0 ? start : walks.positions[walk];
  if (here == kEnded && walks.first_step > 0) return;
  const bool jumps = walks.jump && walks.restart_below > 0;  // back to the start
  if (!is_below(here, csc.map.rows) || (jumps && !is_below(start, csc.map.rows)))
    throw std::out_of_range("walk " + std::to_string(walk) + " is at node " + std::to_string(here) +
                            ", out of range for " + std::to_string(csc.map.rows) + " nodes");
}

}  // namespace

void random_walk_cpu(const CscView& csc, const Walks& walks, int num_threads) {
  parallel_for(walks.count, kWalksPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      check_start(csc, walks, w);
      take_steps(csc, walks, w, true, ContainsInTurn{});
    }
  });
}

}  // namespace peergraph
