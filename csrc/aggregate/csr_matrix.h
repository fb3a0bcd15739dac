// A sparse matrix by rows (CSR), which the kernels of this area read.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ids.h"

namespace peergraph {

/// The assignment of a matrix's rows to the warps of a GPU (neighbour partitioning, MGG 3.2). The
/// defaults were measured on an H200.
struct Schedule {
  int64_t chunk = 256;     // edges of a chunk of a long row
  int64_t long_row = 512;  // rows of more edges are cut in chunks
  /// At most kMaxWarpsPerBlock. A block lives as long as its longest row, and the slots of its
  /// other warps on the multiprocessor stay empty until then; so a block has two warps.
  int32_t warps_per_block = 2;
  int64_t max_chunks = 0;  // bound of the chunks of all long rows; 0: no row is cut
};

constexpr int32_t kMaxWarpsPerBlock = 2;

/// Rows are destinations and columns are sources; in a transpose it is the reverse. The caller has
/// checked the ids.
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
  Schedule schedule;

  PG_HD int64_t begin(int64_t row) const { return load_id(indptr, indptr_bytes, row); }
  PG_HD int64_t end(int64_t row) const { return load_id(indptr, indptr_bytes, row + 1); }
  PG_HD int64_t column(int64_t position) const { return load_id(indices, index_bytes, position); }
  PG_HD int64_t edge(int64_t position) const {
    return edge_id_bytes == 0 ? position : load_id(edge_ids, edge_id_bytes, position);
  }
};

}  // namespace peergraph
