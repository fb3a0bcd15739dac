// Where kernels report ids that are out of range and bounds that were too small, and where later
// calls look for the report.
#pragma once

#include <cstdint>

#include "memory/bad_id.h"

namespace peergraph {

/// What the host reads; in pinned host memory that the device writes.
struct ErrorReport {
  int32_t pending;
  BadId what;
  int64_t position;
  int64_t id;
  int64_t limit;
};

/// One per device, passed to kernels by value. record_bad_id (error_slot.cuh) writes it.
struct ErrorSlot {
  int32_t* lock;           // device memory
  int64_t* best_position;  // device memory: smallest position reported so far
  ErrorReport* report;     // pinned host memory
};

/// The device's slot, made at the first call.
ErrorSlot error_slot(int device);

/// Raises IndexError where a kernel has reported a bad id by now (OverflowError for a bound that
/// was too small), and clears the report. Reads one word of host memory where none has; else waits
/// for the device, so that the id at the smallest position is named.
void raise_pending(int device);

}  // namespace peergraph
