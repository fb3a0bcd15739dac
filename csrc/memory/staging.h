// CPU threads gather rows for a GPU into pinned memory and copy each piece as soon as it is
// complete.
#pragma once

#include <cstdint>
#include <functional>

#include "memory/gather.h"

namespace peergraph {

/// Copies `num_bytes` bytes from `offset` on; called by several threads at once.
using CopyPiece = std::function<void(int64_t offset, int64_t num_bytes)>;

/// buffer[i] = the row of ids.id(i), in pieces. The thread that has gathered a piece calls `copy`
/// for it while other threads gather theirs. Checks the ids, which are in host memory without
/// out_index.
void stage_rows(const TableView& table, const IdList& ids, char* buffer, int num_threads,
                const CopyPiece& copy);

#ifdef PEERGRAPH_CUDA
/// Copies pinned memory to `device`, in `stream`. Leaves `device` current in the calling thread.
void copy_to_gpu(char* target, const char* source, int64_t num_bytes, int device, uintptr_t stream);
#endif

}  // namespace peergraph
