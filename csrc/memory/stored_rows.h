// Gathers rows of a table as users see them: rows of narrow storage are decoded.
#pragma once

#include "common/launch.h"
#include "memory/gather.h"
#include "memory/lease.h"
#include "memory/row_codec.h"

namespace peergraph {

/// out[ids.out_row(i)] = the row of ids.id(i), on the CPU or on a GPU, which reach all memory.
///
/// codec: decodes the rows; null if they are not encoded.
/// scales: the table of the scales of the rows; null if there are none, or the rows have them.
void gather_stored(const Leased<TableView>& table, const RowCodec* codec,
                   const Leased<TableView>* scales, const IdList& ids, char* out,
                   const Launch& launch);

}  // namespace peergraph
