// Splits a range over short-lived threads. No OpenMP: its runtimes do not survive fork(), and data
// loaders fork.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace peergraph {

/// How many pieces parallel_for makes of [0, n).
inline int64_t pieces_of(int64_t n, int64_t grain, int num_threads) {
  return std::max<int64_t>(1, std::min<int64_t>(num_threads, n / std::max<int64_t>(1, grain)));
}

/// Calls body(0), ..., body(pieces - 1) in at most `num_threads` threads, the caller's among them;
/// a thread that is done with a piece takes the next. An exception of any piece is rethrown here.
template <typename Body>
void parallel_pieces(int64_t pieces, int num_threads, const Body& body) {
  if (pieces <= 1 || num_threads <= 1) {
    for (int64_t p = 0; p < pieces; ++p) body(p);
    return;
  }
  std::atomic<int64_t> next{0};
  std::vector<std::exception_ptr> errors(std::min<int64_t>(pieces, num_threads));
  const auto work = [&](std::exception_ptr* error) {
    try {
      for (int64_t p = next++; p < pieces; p = next++) body(p);
    } catch (...) {
      *error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(errors.size() - 1);
  for (size_t t = 1; t < errors.size(); ++t) threads.emplace_back(work, &errors[t]);
  work(&errors[0]);
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

/// Calls body(begin, end) on pieces of [0, n) in at most `num_threads` threads, each piece at least
/// `grain` long. An exception of any piece is rethrown here.
template <typename Body>
void parallel_for(int64_t n, int64_t grain, int num_threads, const Body& body) {
  const int64_t pieces = pieces_of(n, grain, num_threads);
  if (n > 0)
    parallel_pieces(pieces, num_threads,
                    [&](int64_t p) { body(n * p / pieces, n * (p + 1) / pieces); });
}

}  // namespace peergraph
