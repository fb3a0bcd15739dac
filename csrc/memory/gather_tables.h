// Gathers rows of several tables into tensors of torch, without Python.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/launch.h"
#include "common/torch_memory.h"
#include "memory/gather.h"
#include "memory/lease.h"
#include "memory/row_codec.h"
#include "memory/table_view.h"

namespace peergraph {

/// A table whose rows one kernel gathers, as users see them.
struct StoredTable {
  Leased<TableView> table;
  std::optional<RowCodec> codec;            // decodes the rows, if they are encoded
  std::optional<Leased<TableView>> scales;  // of the rows, where they are apart
  int32_t dtype = 0;                        // torch's number
  int64_t row_bytes = 0;                    // of a row of the result
  std::vector<int64_t> row_shape;
};

/// Rows to gather.
struct TableRead {
  const StoredTable* table = nullptr;
  // Null, or the table has the bounds of lists, int64 [columns + 1], in this table of elements.
  const StoredTable* elements = nullptr;
  IdList ids;
};

/// Returns the rows of each read; of lists, where each ends, [rows * columns + 1], and then their
/// elements. Waits for a GPU once, if there are lists.
///
/// sizes: as those of ListPlaces.
///
/// Throws std::bad_alloc if torch has no memory.
std::vector<TorchTensor> gather_tables(const std::vector<TableRead>& reads,
                                       const TorchFunctions& torch, int64_t* sizes,
                                       const Launch& launch);

}  // namespace peergraph
