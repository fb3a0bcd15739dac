// Host memory that several processes map: files without a name, in memory (memfd) or on disk.
#pragma once

#include <cstdint>

namespace peergraph {

/// Maps the first `bytes` bytes of an open file, shared and writable.
///
/// on_disk: the file is on disk; pages are read when they are touched, without read-ahead.
uintptr_t map_shared(int fd, int64_t bytes, bool on_disk);

/// Undoes map_shared.
void unmap_shared(uintptr_t address, int64_t bytes);

}  // namespace peergraph
