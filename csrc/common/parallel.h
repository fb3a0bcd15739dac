// Splits a range over threads: short-lived threads, which also work in a forked process (data
// loaders fork, and OpenMP's threads do not survive a fork), or the threads that torch keeps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/function_ref.h"
#include "common/openmp.h"

namespace peergraph {

/// The number of pieces into which parallel_for splits [0, n).
inline int64_t pieces_of(int64_t n, int64_t grain, int num_threads) {
  return std::max<int64_t>(1, std::min<int64_t>(num_threads, n / std::max<int64_t>(1, grain)));
}

/// Calls body(0), ..., body(pieces - 1) in at most `num_threads` threads, including the calling
/// thread; a thread that has finished a piece takes the next. `team` runs the threads if given,
/// otherwise they are started here. An exception of any piece is rethrown here.
void parallel_pieces(int64_t pieces, int num_threads, FunctionRef<int64_t> body,
                     RunTeam team = nullptr);

/// Calls body(begin, end) on pieces of [0, n) in at most `num_threads` threads, each piece at least
/// `grain` long. An exception of any piece is rethrown here.
void parallel_for(int64_t n, int64_t grain, int num_threads, FunctionRef<int64_t, int64_t> body,
                  RunTeam team = nullptr);

}  // namespace peergraph
