// Groups the rows of joined edges (joined_edges.h) by the destination to which they belong.
#pragma once

#include <cstdint>
#include <vector>

#include "common/allocate.h"
#include "common/launch.h"

namespace peergraph {

/// Rows whose keys are of one segment. Key k belongs to destination k / stride of a group; segments
/// of one group have the same destinations.
struct RowSegment {
  int64_t first_row = 0, end_row = 0;
  int64_t stride = 1;
  int64_t group = 0;
  int64_t first_owner = 0;  // the number of the group's first destination
  int64_t first_place = 0;  // the place of key 0
};

struct RowGrouping {
  const int32_t* keys = nullptr;        // [rows] ascending in each segment, not strictly
  const int32_t* row_indptr = nullptr;  // [rows + 1] the edges of each row
  std::vector<RowSegment> segments;     // in the order of rows
  std::vector<int64_t> first_owners;    // [groups] ascending from 0
  int64_t num_owners = 0;               // of all groups
  int32_t* owners = nullptr;            // [rows] the destination, counting those of all groups
  int64_t* places = nullptr;            // [rows] the key, counting places of all segments; or null
  int32_t* indptr = nullptr;            // [owners + 1]
  int32_t* rows = nullptr;              // [rows] by owner, in ascending order
  int32_t* edge_indptr = nullptr;       // [owners + 1] or null
  int32_t* edges = nullptr;             // [edges] by owner, then in the order of `rows`; or null

  int64_t num_rows() const { return segments.back().end_row; }
};

void group_rows_cpu(const RowGrouping& op);

#ifdef PEERGRAPH_CUDA
/// Does not wait for the stream.
void group_rows_cuda(const RowGrouping& op, int64_t num_edges, const Launch& launch,
                     const Allocate& allocate);
#endif

}  // namespace peergraph
