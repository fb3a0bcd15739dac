// Flags in shared memory: what one rank signals once its work is done, others wait for in theirs.
#pragma once

#include <cstdint>

#include "common/launch.h"

namespace peergraph {

/// A count that ranks raise in memory that all of them map. Values are compared modulo 2^32.
struct FlagWait {
  const uint32_t* flag;
  uint32_t value;   // to be reached
  int64_t timeout;  // nanoseconds
  /// Of this process, which the host and the device write and read. Set where the time is over;
  /// once set, no wait lasts.
  int32_t* given_up;
};

/// Sets the flag; what this thread wrote before is seen by whoever sees the value.
void signal_flag_cpu(uint32_t* flag, uint32_t value);

/// Waits until the flag has reached the value, or gives up.
void wait_for_flag_cpu(const FlagWait& wait);

#ifdef PEERGRAPH_CUDA
/// As signal_flag_cpu, once the work before in the launch's stream is done; asynchronous.
void signal_flag_cuda(uint32_t* flag, uint32_t value, const Launch& launch);

/// Work after this in the launch's stream begins once the flag has reached the value or the wait
/// was given up; asynchronous. One thread of the device polls.
void wait_for_flag_cuda(const FlagWait& wait, const Launch& launch);
#endif

}  // namespace peergraph
