// Gathers rows of tables as users see them: rows of narrow storage are decoded.
#pragma once

#include <vector>

#include "common/allocate.h"
#include "common/launch.h"
#include "memory/gather.h"
#include "memory/lease.h"
#include "memory/row_codec.h"

namespace peergraph {

/// A gather: out[ids.out_row(i)] = the row of ids.id(i).
struct StoredRead {
  const Leased<TableView>* table = nullptr;
  const RowCodec* codec = nullptr;  // decodes the rows; null: they are not encoded
  const Leased<TableView>* scales =
      nullptr;  // of the rows; null: there are none, or rows have them
  IdList ids;
  char* out = nullptr;
};

/// Gathers on the CPU or on a GPU, which reach all memory. On a GPU a few launches serve all reads.
///
/// allocate: gives memory of the GPU; not called for a single read.
void gather_stored(const std::vector<StoredRead>& reads, const Allocate& allocate,
                   const Launch& launch);

}  // namespace peergraph
