// Groups the edges of a matrix by column in no fixed order, for sums that are made once. Two passes
// over the edges, with a scan of the counts between them, take the place of a sort.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "common/launch.h"

namespace peergraph {

struct EdgeRanks {
  CsrMatrix matrix;           // of fewer than 2^31 edges
  int32_t* counts = nullptr;  // [num_columns], zeros; becomes the number of edges of each column
  int32_t* ranks = nullptr;   // [num_edges] by position: a number below its column's count
};

/// Numbers the edges of each column, on the CPU in the order of their positions. Positions outside
/// of all rows are padding and keep their ranks.
void rank_edges_cpu(const EdgeRanks& op);

struct EdgePlaces {
  CsrMatrix matrix;
  const int32_t* indptr = nullptr;  // [num_columns + 1] the sums of the counts
  const int32_t* ranks = nullptr;   // [num_edges]
  int32_t* rows = nullptr;          // [num_edges] of the edges, grouped by column
  int32_t* edge_ids = nullptr;      // [num_edges] likewise
};

/// Writes row and id of each edge to the place indptr[column] + rank.
void place_edges_cpu(const EdgePlaces& op);

#ifdef PEERGRAPH_CUDA
/// As on the CPU, but the edges of a column are in no fixed order. Asynchronous.
void rank_edges_cuda(const EdgeRanks& op, const Launch& launch);
void place_edges_cuda(const EdgePlaces& op, const Launch& launch);
#endif

}  // namespace peergraph
