#include "common/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace peergraph {

void parallel_pieces(int64_t pieces, int num_threads, FunctionRef<int64_t> body, RunTeam team) {
  if (pieces <= 1 || num_threads <= 1) {
    for (int64_t p = 0; p < pieces; ++p) body(p);
    return;
  }
  const int64_t most = std::min<int64_t>(pieces, num_threads);
  std::atomic<int64_t> next{0};
  std::atomic<bool> has_failed{false};
  std::exception_ptr error;
  const auto work = [&]() noexcept {
    try {
      for (int64_t p = next++; p < pieces; p = next++) body(p);
    } catch (...) {
      if (!has_failed.exchange(true)) error = std::current_exception();
    }
  };
  // The work is done even if there are fewer threads.
  if (team != nullptr) {
    team([](void* data) { (*static_cast<decltype(work)*>(data))(); },
         const_cast<void*>(static_cast<const void*>(&work)), static_cast<unsigned>(most), 0);
  } else {
    std::vector<std::thread> threads;
    threads.reserve(most - 1);
    try {
      while (static_cast<int64_t>(threads.size()) < most - 1) threads.emplace_back(work);
    } catch (const std::system_error&) {  // the system allows no more threads
    }
    work();
    for (auto& t : threads) t.join();
  }
  if (error) std::rethrow_exception(error);
}

void parallel_for(int64_t n, int64_t grain, int num_threads, FunctionRef<int64_t, int64_t> body,
                  RunTeam team) {
  const int64_t pieces = pieces_of(n, grain, num_threads);
  if (n > 0)
    parallel_pieces(
        pieces, num_threads, [&](int64_t p) { body(n * p / pieces, n * (p + 1) / pieces); }, team);
}

}  // namespace peergraph
