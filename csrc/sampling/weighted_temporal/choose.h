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

PG_HD Candidates candidates_of(const CscView& csc, const Choice& choice, const Hop& hop,
                               int64_t target, const Neighbors& list) {
  return {
      csc,
      choice,
      hop.random,
      hop.position(target),
      list,
      choice.timed() && hop.targets[target] >= 0 ? hop.seed_times[hop.target_trees[target]] : 0};
}

PG_HD Candidates candidates_of(const CscView& csc, const Choice& choice, const Hop& hop,
                               int64_t target) {
  return candidates_of(csc, choice, hop, target, hop.neighbors(csc, target));
}

/// As count_neighbors_cpu, with the lists that it wrote. If times alone decide, and a list is in
/// the order of its times, the list is replaced by the part of it that sample_neighbors_cpu samples
/// from. `times` are planned for these lists, and keep what the choice needs.
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
