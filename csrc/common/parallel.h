// Splits a range over short-lived threads. No OpenMP: its runtimes do not survive fork(), and data
// loaders fork.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace peergraph {

/// How many pieces parallel_for makes of [0, n).
inline int64_t pieces_of(int64_t n, int64_t grain, int num_threads) {
  return std::max<int64_t>(1, std::min<int64_t>(num_threads, n / std::max<int64_t>(1, grain)));
}

/// Calls body(begin, end) on pieces of [0, n) in at most `num_threads` threads, each piece at least
/// `grain` long. An exception of any piece is rethrown here.
template <typename Body>
void parallel_for(int64_t n, int64_t grain, int num_threads, const Body& body) {
  const int64_t pieces = pieces_of(n, grain, num_threads);
  if (pieces == 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  std::vector<std::exception_ptr> errors(pieces);
  std::vector<std::thread> threads;
  threads.reserve(pieces);
  for (int64_t p = 0; p < pieces; ++p) {
    threads.emplace_back([&, p] {
      try {
        body(n * p / pieces, n * (p + 1) / pieces);
      } catch (...) {
        errors[p] = std::current_exception();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace peergraph
