// Addresses of a table's rows, for kernels that read the rows in place.
#pragma once

#include "memory/gather.h"
#include "memory/table_view.h"

namespace peergraph {

/// out[i] = the address of row ids[i]. Checks the ids first. All memory is reachable by this CPU.
void row_addresses_cpu(const TableView& table, const IdList& ids, int64_t* out, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As row_addresses_cpu, on `device` in `stream`, with ids and out in memory the device reaches.
/// Ids out of range give 0 and are recorded in the device's error slot (error_slot.h).
void row_addresses_cuda(const TableView& table, const IdList& ids, int64_t* out, int device,
                        uintptr_t stream);
#endif

}  // namespace peergraph
