// Device side of the error slot.
#pragma once

#include <cstdint>

#include "memory/error_slot.h"

namespace peergraph {

/// Reports that `id`, at `position` of the op's ids, is not below `limit`. Of all reports the one
/// at the smallest position stays. Slow, for it is for bad ids only.
__device__ inline void record_bad_id(const ErrorSlot& slot, int64_t position, int64_t id,
                                     int64_t limit, BadId what = BadId::kTableRow) {
  volatile int64_t* best = slot.best_position;
  bool done = position >= *best;
  // The lock is taken and released within one iteration, so lanes of a warp cannot wait for each
  // other forever.
  while (!done) {
    if (atomicCAS(slot.lock, 0, 1) == 0) {
      __threadfence();
      if (position < *best) {
        volatile ErrorReport* report = slot.report;
        *best = position;
        report->position = position;
        report->id = id;
        report->limit = limit;
        report->what = what;
        __threadfence_system();
        report->pending = 1;
      }
      __threadfence_system();
      atomicExch(slot.lock, 0);
      done = true;
    } else {
      done = position >= *best;
    }
  }
}

}  // namespace peergraph
