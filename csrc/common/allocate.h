// The allocator that operations get from their caller.
#pragma once

#include <cstdint>
#include <functional>

namespace peergraph {

/// Returns memory of the operation's device. The memory stays valid until the caller's operation
/// has ended, and work that was queued in the operation's stream may use the memory after that.
using Allocate = std::function<void*(int64_t num_bytes)>;

}  // namespace peergraph
