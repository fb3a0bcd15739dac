#include "memory/rounds.h"

#include <chrono>
#include <thread>

namespace peergraph {
namespace {

using Clock = std::chrono::steady_clock;

// Other ranks are rarely later than this; then the thread sleeps and leaves them the processor.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kSleep = std::chrono::microseconds(50);

bool has_reached(uintptr_t address, int64_t round) {
  return __atomic_load_n(reinterpret_cast<const int64_t*>(address), __ATOMIC_ACQUIRE) >= round;
}

}  // namespace

void post_round(uintptr_t address, int64_t round) {
  __atomic_store_n(reinterpret_cast<int64_t*>(address), round, __ATOMIC_RELEASE);
}

std::vector<int> await_round(const std::vector<uintptr_t>& addresses, int64_t round,
                             double seconds) {
  const auto start = Clock::now();
  const auto limit = std::chrono::duration<double>(seconds);
  size_t arrived = 0;
  while (true) {
    while (arrived < addresses.size() && has_reached(addresses[arrived], round)) ++arrived;
    if (arrived == addresses.size()) return {};
    const auto waited = Clock::now() - start;
    if (waited >= limit) break;
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  std::vector<int> behind;
  for (size_t i = arrived; i < addresses.size(); ++i)
    if (!has_reached(addresses[i], round)) behind.push_back(static_cast<int>(i));
  return behind;
}

}  // namespace peergraph
