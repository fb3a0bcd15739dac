#include "aggregate/edge_grouping.h"

namespace peergraph {

void rank_edges_cpu(const EdgeRanks& op) {
  if (op.matrix.num_rows == 0) return;
  const int64_t end = op.matrix.end(op.matrix.num_rows - 1);
  for (int64_t p = op.matrix.begin(0); p < end; ++p) op.ranks[p] = op.counts[op.matrix.column(p)]++;
}

void place_edges_cpu(const EdgePlaces& op) {
  for (int64_t row = 0; row < op.matrix.num_rows; ++row) {
    const int64_t end = op.matrix.end(row);
    for (int64_t p = op.matrix.begin(row); p < end; ++p) {
      const int64_t place = int64_t{op.indptr[op.matrix.column(p)]} + op.ranks[p];
      if (!is_below(place, op.matrix.num_edges))
        throw_changed("ranks", p, place, op.matrix.num_edges);
      op.rows[place] = static_cast<int32_t>(row);
      op.edge_ids[place] = static_cast<int32_t>(op.matrix.edge(p));
    }
  }
}

}  // namespace peergraph
