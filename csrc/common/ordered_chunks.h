// Chunks of work that several threads prepare and one of them uses in order.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace peergraph {

/// Passes chunks from the threads that prepare them to the one thread that uses them.
class OrderedChunks {
 public:
  explicit OrderedChunks(int64_t chunks) : ready_(chunks) {}

  /// Prepares chunks until all are taken; any number of threads at once.
  template <typename Prepare>
  void produce(const Prepare& prepare) {
    while (prepare_next(prepare)) {
    }
  }

  /// Calls use(chunk) for all chunks in order, by one thread. If the next chunk is not ready, the
  /// thread prepares another one. It stops early only if prepare threw in another thread.
  template <typename Prepare, typename Use>
  void consume(const Prepare& prepare, const Use& use) {
    const auto chunks = static_cast<int64_t>(ready_.size());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int tries = 0; !ready_[chunk].load(std::memory_order_acquire); ++tries) {
        if (prepare_next(prepare)) continue;
        if (failed_) return;
        wait(tries);
      }
      use(chunk);
    }
  }

 private:
  static constexpr int kPatience = 64;  // yields before a thread sleeps

  template <typename Prepare>
  bool prepare_next(const Prepare& prepare) {
    const int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= static_cast<int64_t>(ready_.size())) return false;
    try {
      prepare(chunk);
    } catch (...) {
      failed_ = true;
      throw;
    }
    ready_[chunk].store(true, std::memory_order_release);
    return true;
  }

  static void wait(int tries) {
    if (tries < kPatience)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  std::vector<std::atomic<bool>> ready_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace peergraph
