#include "sampling/walks/random_walk.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/parallel.h"
#include "common/read_once.h"
#include "sampling/common/contains.cuh"
#include "sampling/walks/random_walk.cuh"

namespace peergraph {
namespace {

constexpr int64_t kWalksPerThread = 256;
constexpr int64_t kWalksInTurn = 32;  // whose lists are fetched at the same time

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

void fetch_list(const CscView& csc, const Walks& walks, int64_t walk, int64_t step) {
  const int64_t here =
      step == 0 ? walks.to_internal(walks.nodes[walk * (walks.length + 1)]) : walks.positions[walk];
  if (here == kEnded) return;
  const Location at = csc.locate(here);
  __builtin_prefetch(csc.part(at).indptr + at.local);
}

/// Takes a step of each walk in turn, so that memory is read for many walks at once. Steps of
/// second order need the step before, which is known within one walk only.
void take_steps_in_turn(const CscView& csc, const Walks& walks, int64_t begin, int64_t end) {
  Walks step = walks;
  step.steps = 1;
  for (int64_t t = walks.first_step; t < walks.first_step + walks.steps; ++t) {
    step.first_step = t;
    for (int64_t w = begin; w < end; ++w) fetch_list(csc, walks, w, t);
    for (int64_t w = begin; w < end; ++w) take_steps(csc, step, w, true, ContainsInTurn{});
  }
}

}  // namespace

void random_walk_cpu(const CscView& csc, const Walks& walks, int num_threads) {
  parallel_for(walks.count, kWalksPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) check_start(csc, walks, w);
    if (walks.biased) {
      for (int64_t w = begin; w < end; ++w) take_steps(csc, walks, w, true, ContainsInTurn{});
    } else {
      for (int64_t w = begin; w < end; w += kWalksInTurn)
        take_steps_in_turn(csc, walks, w, std::min(w + kWalksInTurn, end));
    }
  });
}

}  // namespace peergraph
