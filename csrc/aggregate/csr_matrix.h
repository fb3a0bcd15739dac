// A sparse matrix by rows (CSR), which the kernels of this area read.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/host_device.h"
#include "common/ids.h"
#include "common/read_once.h"

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

/// The error for a value of the structure's tensors that was changed after the check.
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_changed(const char* tensor, int64_t at,
                                                                 int64_t value, int64_t limit) {
  throw std::out_of_range(std::string(tensor) + "[" + std::to_string(at) +
                          "] = " + std::to_string(value) + " is out of range for " +
                          std::to_string(limit) + ": the structure was changed after it was made");
}

/// Rows are destinations and columns are sources; in a transpose it is the reverse. The caller has
/// checked the ids. Users may change them later, in ways that nobody sees: the CPU checks each
/// value when it reads it. On a GPU, values must stay as they are.
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
  int64_t num_edge_rows = INT64_MAX;  // of the edge tensors of an operation: bound of edge_ids
  Schedule schedule;

  PG_HD int64_t begin(int64_t row) const { return offset(row); }
  PG_HD int64_t end(int64_t row) const { return offset(row + 1); }
  /// The position of the last edge of the rows before `row`, 0 if there is none: where prefetching
  /// ends. Edges behind the last row may have any columns.
  int64_t last_position(int64_t row) const {
    const int64_t first_behind = offset(row);
    return first_behind > 0 ? first_behind - 1 : 0;
  }
  PG_HD int64_t column(int64_t position) const {
#ifdef __CUDA_ARCH__
    return load_id(indices, index_bytes, position);
#else
    const int64_t id = load_id_once(indices, index_bytes, position);
    if (!is_below(id, num_columns)) throw_changed("indices", position, id, num_columns);
    return id;
#endif
  }
  PG_HD int64_t edge(int64_t position) const {
    if (edge_id_bytes == 0) return position;
#ifdef __CUDA_ARCH__
    return load_id(edge_ids, edge_id_bytes, position);
#else
    const int64_t id = load_id_once(edge_ids, edge_id_bytes, position);
    if (!is_below(id, num_edge_rows)) throw_changed("edge_ids", position, id, num_edge_rows);
    return id;
#endif
  }

 private:
  PG_HD int64_t offset(int64_t row) const {
#ifdef __CUDA_ARCH__
    return load_id(indptr, indptr_bytes, row);
#else
    const int64_t first = load_id_once(indptr, indptr_bytes, row);
    if (!is_below(first, num_edges + 1)) throw_changed("indptr", row, first, num_edges);
    return first;
#endif
  }
};

}  // namespace peergraph
