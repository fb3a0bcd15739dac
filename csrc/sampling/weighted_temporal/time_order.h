// Neighbour lists in the order of their times: whether all lists of a relation are, and the part of
// each list that a seed's window admits, found by bisection.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "sampling/common/hop_batch.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

/// The part of a list that is sampled as a list without times, if `before` of its times are before
/// the window and the next `admitted` in it.
PG_HD ListPart part_to_sample(const Choice& choice, int64_t fanout, int64_t before,
                              int64_t admitted) {
  const int64_t degree = choice.last && fanout >= 0 && fanout < admitted ? fanout : admitted;
  return {before + admitted - degree, degree};
}

/// Whether no list of the relation has a time before the one that precedes it.
bool lists_in_order_cpu(const CscView& csc, const Choice& choice, int num_threads);

/// As lists_in_order_cpu; waits for the device. `failures` is a word of its memory.
bool lists_in_order_cuda(const CscView& csc, const Choice& choice, int64_t* failures, int device,
                         uintptr_t stream);

/// Replaces the lists of targets [begin, end) by the parts to sample; writes offsets[t] = number of
/// edges of target t. For choices that bisect.
void bisect_lists_cpu(const CscView& csc, const Choice& choice, const Hop& hop, Neighbors* lists,
                      int64_t begin, int64_t end);

/// Gives a hop memory for the parts of its lists, if its choice bisects.
inline void take_parts(const Choice& choice, Hop& hop, Arena& arena) {
  if (!choice.bisects(hop.fanout)) return;
  hop.parts =
      static_cast<ListPart*>(arena.take(hop.num_targets * static_cast<int64_t>(sizeof(ListPart))));
}

/// Writes the parts of the hops that have memory for them.
void bisect_lists_cuda(const HopBatch& batch);

}  // namespace peergraph
