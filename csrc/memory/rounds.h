// Counters in shared memory, by which processes wait for each other within microseconds.
#pragma once

#include <cstdint>
#include <vector>

namespace peergraph {

/// Sets a counter. A process that sees the new value sees all earlier writes of this process to
/// host memory.
void post_round(uintptr_t address, int64_t round);

/// Waits until all counters have reached `round`, for at most `seconds`. Returns the positions of
/// the counters that have not. A counter has 8 bytes, aligned.
std::vector<int> await_round(const std::vector<uintptr_t>& addresses, int64_t round,
                             double seconds);

}  // namespace peergraph
