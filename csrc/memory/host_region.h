// Host memory that several processes map: files without a name to leave behind, in memory (memfd)
// or on disk.
#pragma once

#include <cstdint>

namespace peergraph {

/// Maps the first `bytes` bytes of an open file, shared and writable.
///
/// on_disk: it is a real file, of which only what is touched is read.
uintptr_t map_shared(int fd, int64_t bytes, bool on_disk);

/// Undoes map_shared.
void unmap_shared(uintptr_t address, int64_t bytes);

}  // namespace peergraph
