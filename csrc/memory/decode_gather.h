// Gathers of rows that are stored in fewer bytes than the caller gets: a gather that widens the
// values while it copies them.
#pragma once

#include <cstdint>

#include "memory/gather.h"
#include "memory/row_codec.h"

namespace peergraph {

/// out[ids.out_row(i)] = the values of the row of ids.id(i), widened to codec.dtype: a stored value
/// as float32, times the scale of its column in float32 where there are scales, rounded to
/// codec.dtype (to nearest, ties to even). Checks the ids first. All memory must be accessible from
/// this CPU.
void decode_gather_cpu(const TableView& table, const RowCodec& codec, const IdList& ids, char* out,
                       int num_threads);

#ifdef PEERGRAPH_CUDA
/// As decode_gather_cpu, on `device` in `stream`, with ids and out in memory the device reaches.
/// Ids out of range, and rows of tiers without an address in `table`, give zeros, as in
/// gather_cuda. ids.host_begin is not used.
void decode_gather_cuda(const TableView& table, const RowCodec& codec, const IdList& ids, char* out,
                        int device, uintptr_t stream);
#endif

}  // namespace peergraph
