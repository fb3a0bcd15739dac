// Flags in shared memory: a rank sets a flag when its work is done, and other ranks wait for it.
#pragma once

#include <cstdint>

#include "common/launch.h"

namespace peergraph {

/// A wait for a count that a rank increases in shared memory. Values are compared modulo 2^32.
struct FlagWait {
  const uint32_t* flag;
  uint32_t value;   // to be reached
  int64_t timeout;  // nanoseconds
  /// A word of this process that the host and the device write and read. It is set after the
  /// timeout; once it is set, all waits end.
  int32_t* given_up;
};

/// Sets the flag. A reader that sees the value also sees all earlier writes of this thread.
void signal_flag_cpu(uint32_t* flag, uint32_t value);

/// Waits until the flag has reached the value, or gives up.
void wait_for_flag_cpu(const FlagWait& wait);

#ifdef PEERGRAPH_CUDA
/// As signal_flag_cpu, after all earlier work in the launch's stream; asynchronous.
void signal_flag_cuda(uint32_t* flag, uint32_t value, const Launch& launch);

/// Makes later work in the launch's stream wait until the flag has reached the value or the wait is
/// given up; asynchronous. One thread of the device polls.
void wait_for_flag_cuda(const FlagWait& wait, const Launch& launch);
#endif

}  // namespace peergraph
