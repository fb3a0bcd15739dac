// Rows for a GPU that CPU threads gather: into pinned memory, each piece copied when it is
// complete.
#pragma once

#include <cstdint>
#include <functional>

#include "memory/gather.h"

namespace peergraph {

/// Copies so many bytes, from an offset on; called by several threads at once.
using CopyPiece = std::function<void(int64_t offset, int64_t num_bytes)>;

/// buffer[i] = row ids[i] in host memory, a piece after the other; `copy` is called for each piece
/// in the thread that gathered it, while others gather theirs. Checks the ids; those are in host
/// memory and have no places.
void stage_rows(const TableView& table, const IdList& ids, char* buffer, int num_threads,
                const CopyPiece& copy);

#ifdef PEERGRAPH_CUDA
/// Copies pinned memory to `device`, in `stream`. Leaves `device` current in the calling thread.
void copy_to_gpu(char* to, const char* from, int64_t num_bytes, int device, uintptr_t stream);
#endif

}  // namespace peergraph
