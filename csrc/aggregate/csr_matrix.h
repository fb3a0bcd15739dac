// A sparse matrix by rows, as the kernels of this area walk it.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ids.h"

namespace peergraph {

/// Rows are destinations and columns sources, or the reverse in a transpose. Ids are trusted: the
/// caller has checked them.
struct CsrMatrix {
  const void* indptr = nullptr;    // [num_rows + 1]
  const void* indices = nullptr;   // [num_edges] columns
  const void* edge_ids = nullptr;  // [num_edges] position -> row of edge tensors
  int32_t indptr_bytes = 8;
  int32_t index_bytes = 8;
  int32_t edge_id_bytes = 0;  // 0: the position itself
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t num_edges = 0;

  PG_HD int64_t begin(int64_t row) const { return load_id(indptr, indptr_bytes, row); }
  PG_HD int64_t end(int64_t row) const { return load_id(indptr, indptr_bytes, row + 1); }
  PG_HD int64_t column(int64_t position) const { return load_id(indices, index_bytes, position); }
  PG_HD int64_t edge(int64_t position) const {
    return edge_id_bytes == 0 ? position : load_id(edge_ids, edge_id_bytes, position);
  }
};

}  // namespace peergraph
