// Flags in shared memory, on the CPU.
#include "memory/flags.h"

#include <chrono>
#include <thread>

namespace peergraph {

void signal_flag_cpu(uint32_t* flag, uint32_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

void wait_for_flag_cpu(const FlagWait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(wait.timeout);
  auto pause = std::chrono::microseconds(1);
  while (static_cast<int32_t>(__atomic_load_n(wait.flag, __ATOMIC_ACQUIRE) - wait.value) < 0) {
    if (__atomic_load_n(wait.given_up, __ATOMIC_RELAXED) != 0) return;
    if (Clock::now() > end) {
      __atomic_store_n(wait.given_up, 1, __ATOMIC_RELAXED);
      return;
    }
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::microseconds(500)) pause *= 2;
  }
}

}  // namespace peergraph
