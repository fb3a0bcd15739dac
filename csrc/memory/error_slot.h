// Error slots: kernels report ids out of range, bounds that are too small and tensors that were
// written unseen there, and later calls read the reports.
#pragma once

#include <cstdint>

#include "memory/bad_id.h"

namespace peergraph {

/// The report of an error, in pinned host memory that the device writes and the host reads.
struct ErrorReport {
  int32_t pending;
  BadId what;
  int64_t position;
  int64_t id;
  int64_t limit;
};

/// One per device, passed to kernels by value. record_bad_id writes it.
struct ErrorSlot {
  int32_t* lock;           // device memory
  int64_t* best_position;  // device memory: smallest position reported so far
  ErrorReport* report;     // pinned host memory
};

/// The device's slot, made at the first call.
ErrorSlot error_slot(int device);

/// Raises IndexError if a kernel has reported a bad id (OverflowError for a bound that was too
/// small, RuntimeError for a tensor that was written), and clears the report. Without a report it
/// reads one word of host memory; with one it waits for the device, so that the error names the id
/// at the smallest position.
void raise_pending(int device);

/// How many writes raise_pending has raised. What was made of tensors before the last one may be of
/// earlier values.
int64_t num_raised_writes();

#ifdef __CUDACC__
/// Reports that `id`, at `position` of the op's ids, is not below `limit`. Of all reports the one
/// at the smallest position stays. It is slow, since it is called for bad ids only.
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
#endif

}  // namespace peergraph
