// Weighted, temporal and LABOR sampling of the neighbours of a hop's targets, and sampling with
// replacement.
#pragma once

#include <cstdint>

#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
#include "sampling/weighted_temporal/choice.h"
#include "sampling/weighted_temporal/list_times.h"
#include "store/csc_view.h"

namespace peergraph {

/// The times that a target's seed admits. The subtraction of the window's length does not overflow.
PG_HD TimeWindow window_of(const Choice& choice, const Hop& hop, int64_t target) {
  if (!choice.timed() || hop.targets[target] < 0) return {};
  const int32_t tree = hop.target_trees[target];
  const int64_t last = hop.seed_times.last[tree];
  int64_t first = hop.seed_times.first == nullptr ? INT64_MIN : hop.seed_times.first[tree];
  if (choice.window >= 0 && last >= INT64_MIN + choice.window && last - choice.window > first)
    first = last - choice.window;
  return {first, last};
}

PG_HD Candidates candidates_of(const CscView& csc, const Choice& choice, const Hop& hop,
                               int64_t target, const Neighbors& list) {
  return {csc, choice, hop.random, hop.position(target), list, window_of(choice, hop, target)};
}

PG_HD Candidates candidates_of(const CscView& csc, const Choice& choice, const Hop& hop,
                               int64_t target) {
  return candidates_of(csc, choice, hop, target, hop.neighbors(csc, target));
}

/// As count_neighbors_cpu, with the lists that it wrote. If times alone decide, and a list is in
/// the order of its times, the list is replaced by the part of it that is sampled as lists without
/// times are. `times` are planned for these lists, unless the choice bisects, and keep what it
/// needs.
void count_choices_cpu(const CscView& csc, const Choice& choice, const Hop& hop, Neighbors* lists,
                       ListTimes& times, int64_t begin, int64_t end);

/// As sample_neighbors_cpu; `lists` and `times` are those of count_choices_cpu.
void choose_neighbors_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                          const Neighbors* lists, const ListTimes& times, int64_t begin,
                          int64_t end, DrawScratch& scratch);

/// As count_neighbors_cuda, for the relations that do not draw uniformly without replacement.
void count_choices_cuda(const HopBatch& batch);

/// As sample_neighbors_cuda, for the other relations; needs no work space, however long the lists
/// and large the fanouts are.
void choose_neighbors_cuda(const HopBatch& batch);

}  // namespace peergraph
