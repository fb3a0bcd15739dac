// Gathers rows with narrow storage, which are stored in fewer bytes than the caller gets. The
// values are widened while they are copied.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/gather.h"
#include "memory/row_codec.h"

namespace peergraph {

/// out[ids.out_row(i)] = the values of the row of ids.id(i), widened to codec.dtype: a stored value
/// becomes float32, is multiplied by the scale of its column if the codec has scales, and is
/// rounded to codec.dtype (to nearest, ties to even). `scales` has the scales of each row if they
/// are apart, with the rows of `table`; null: the rows of `table` have them. Checks the ids first.
/// All memory must be accessible from this CPU.
void decode_gather_cpu(const TableView& table, const TableView* scales, const RowCodec& codec,
                       const IdList& ids, char* out, int num_threads);

/// Widens the values `first` .. `first` + `count` - 1 of a stored row, as decode_gather_cpu does.
/// `scales` is the address of the row's scales; `out` has room for `count` values of codec.dtype.
void decode_columns(const char* row, const char* scales, const RowCodec& codec, int64_t first,
                    int64_t count, void* out);

#ifdef PEERGRAPH_CUDA
/// A gather of encoded rows, with the arguments of decode_gather_cpu.
struct DecodeRead {
  const TableView* table = nullptr;
  const TableView* scales = nullptr;
  RowCodec codec;
  IdList ids;
  char* out = nullptr;
};

/// As decode_gather_cpu for each of several reads, on `device` in `stream`, with ids and results in
/// memory the device reaches. A few launches serve all. Ids out of range, and rows of tiers without
/// an address in their table, give zeros, as in gather_cuda. `allocate` is called for several reads
/// only.
void decode_gather_cuda(const std::vector<DecodeRead>& reads, const Allocate& allocate, int device,
                        uintptr_t stream);
#endif

}  // namespace peergraph
