// Counters in memory that processes share, by which they wait for each other in microseconds.
#pragma once

#include <cstdint>
#include <vector>

namespace peergraph {

/// Sets the counter: who sees the new value sees what this process wrote to host memory before.
void post_round(uintptr_t address, int64_t round);

/// Waits until all counters have reached `round`, for at most `seconds`. Returns the positions of
/// those that have not. Counters are 8 bytes, aligned.
std::vector<int> await_round(const std::vector<uintptr_t>& addresses, int64_t round,
                             double seconds);

}  // namespace peergraph
