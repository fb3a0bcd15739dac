#include "aggregate/joined_rows.h"

#include <algorithm>

namespace peergraph {

void group_rows_cpu(const RowGrouping& op) {
  std::fill_n(op.indptr, op.num_owners + 1, 0);
  for (const RowSegment& segment : op.segments)
    for (int64_t row = segment.first_row; row < segment.end_row; ++row) {
      const int64_t owner = segment.first_owner + op.keys[row] / segment.stride;
      op.owners[row] = static_cast<int32_t>(owner);
      if (op.places != nullptr) op.places[row] = segment.first_place + op.keys[row];
      ++op.indptr[owner + 1];
    }
  for (int64_t owner = 0; owner < op.num_owners; ++owner) op.indptr[owner + 1] += op.indptr[owner];
  std::vector<int32_t> next(op.indptr, op.indptr + op.num_owners);
  for (int64_t row = 0; row < op.num_rows(); ++row)
    op.rows[next[op.owners[row]]++] = static_cast<int32_t>(row);
  if (op.edge_indptr == nullptr) return;  // `edges` is null, too, where there are no edges.
  int32_t place = 0;
  for (int64_t owner = 0; owner < op.num_owners; ++owner) {
    op.edge_indptr[owner] = place;
    for (int32_t i = op.indptr[owner]; i < op.indptr[owner + 1]; ++i)
      for (int32_t edge = op.row_indptr[op.rows[i]]; edge < op.row_indptr[op.rows[i] + 1]; ++edge)
        op.edges[place++] = edge;
  }
  op.edge_indptr[op.num_owners] = place;
}

}  // namespace peergraph
