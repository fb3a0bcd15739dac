// Host memory that several processes map: anonymous files (memfd), which have no name to leave
// behind.
#pragma once

#include <cstdint>

namespace peergraph {

/// Maps the first `bytes` bytes of an open file, shared and writable.
uintptr_t map_shared(int fd, int64_t bytes);

/// Undoes map_shared.
void unmap_shared(uintptr_t address, int64_t bytes);

}  // namespace peergraph
