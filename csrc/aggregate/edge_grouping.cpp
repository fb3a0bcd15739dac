#include "aggregate/edge_grouping.h"

namespace peergraph {

void rank_edges_cpu(const EdgeRanks& op) {
  if (op.matrix.num_rows == 0) return;
  for (int64_t p = op.matrix.begin(0); p < op.matrix.end(op.matrix.num_rows - 1); ++p)
    op.ranks[p] = op.counts[op.matrix.column(p)]++;
}

void place_edges_cpu(const EdgePlaces& op) {
  for (int64_t row = 0; row < op.matrix.num_rows; ++row)
    for (int64_t p = op.matrix.begin(row); p < op.matrix.end(row); ++p) {
      const int64_t place = int64_t{op.indptr[op.matrix.column(p)]} + op.ranks[p];
      op.rows[place] = static_cast<int32_t>(row);
      op.edge_ids[place] = static_cast<int32_t>(op.matrix.edge(p));
    }
}

}  // namespace peergraph
