// Groups rows by destination on a GPU, without a sort: keys ascend in each segment, so that binary
// searches find the rows of a destination.
#include <algorithm>
#include <numeric>

#include "aggregate/host_table.cuh"
#include "aggregate/joined_rows.h"
#include "common/cuda_check.cuh"
#include "common/partition_point.h"

namespace peergraph {
namespace {

/// A segment in the order of groups, with the position of the first segment of its group.
struct GroupedSegment {
  RowSegment segment;
  int64_t group_begin;
};

/// The last of `count` ascending values that is at most `value`; the first one is.
template <typename T>
__device__ int64_t last_not_behind(const T* values, int64_t count, int64_t value) {
  const auto is_before = [&](int64_t i) { return values[i] <= value; };
  return partition_point(int64_t{1}, count, is_before) - 1;
}

struct Grouping {
  const int32_t* keys;
  const int32_t* row_indptr;
  const GroupedSegment* segments;
  const int64_t* positions;     // [segments] in `segments`, by the order of rows
  const int64_t* first_rows;    // [segments] by the order of rows
  const int64_t* first_owners;  // [groups]
  const int64_t* group_cuts;    // [groups + 1] the first segment of each
  int64_t num_segments, num_groups, num_rows, num_owners, num_edges;
  int32_t* owners;
  int64_t* places;
  int32_t* indptr;
  int32_t* rows;
  int32_t* edge_indptr;
  int32_t* edges;
  int32_t* shifts;  // [rows] from an edge of a row to its place in `edges`, or null

  /// The first row of a segment that belongs to a destination or to a later one.
  __device__ int64_t first_row(const RowSegment& segment, int64_t destination) const {
    const int64_t key = destination * segment.stride;
    return partition_point(segment.first_row, segment.end_row,
                           [&](int64_t row) { return keys[row] < key; });
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    cut_grouped_rows(const __grid_constant__ Grouping op) {
  for (int64_t owner = global_thread(); owner <= op.num_owners; owner += grid_threads()) {
    int64_t rows = op.num_rows, edges = op.num_edges;
    if (owner < op.num_owners) {
      rows = edges = 0;
      const int64_t group = last_not_behind(op.first_owners, op.num_groups, owner);
      const int64_t begin = op.group_cuts[group], destination = owner - op.first_owners[group];
      for (int64_t i = 0; i < op.group_cuts[group + 1]; ++i) {
        const RowSegment& segment = op.segments[i].segment;
        const int64_t end = i < begin ? segment.end_row : op.first_row(segment, destination);
        rows += end - segment.first_row;
        edges += op.row_indptr[end] - op.row_indptr[segment.first_row];
      }
    }
    op.indptr[owner] = static_cast<int32_t>(rows);
    if (op.edge_indptr != nullptr) op.edge_indptr[owner] = static_cast<int32_t>(edges);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    place_grouped_rows(const __grid_constant__ Grouping op) {
  for (int64_t row = global_thread(); row < op.num_rows; row += grid_threads()) {
    const int64_t i = op.positions[last_not_behind(op.first_rows, op.num_segments, row)];
    const RowSegment& segment = op.segments[i].segment;
    const int64_t destination = op.keys[row] / segment.stride;
    const int64_t owner = segment.first_owner + destination;
    op.owners[row] = static_cast<int32_t>(owner);
    if (op.places != nullptr) op.places[row] = segment.first_place + op.keys[row];
    int64_t place = op.indptr[owner];
    int64_t edges = op.edge_indptr == nullptr ? 0 : op.edge_indptr[owner];
    for (int64_t j = op.segments[i].group_begin; j < i; ++j) {
      const RowSegment& before = op.segments[j].segment;
      const int64_t begin = op.first_row(before, destination);
      const int64_t end = op.first_row(before, destination + 1);
      place += end - begin;
      edges += op.row_indptr[end] - op.row_indptr[begin];
    }
    const int64_t begin = op.first_row(segment, destination);
    op.rows[place + row - begin] = static_cast<int32_t>(row);
    if (op.shifts != nullptr) op.shifts[row] = static_cast<int32_t>(edges - op.row_indptr[begin]);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    place_grouped_edges(const __grid_constant__ Grouping op) {
  for (int64_t edge = global_thread(); edge < op.num_edges; edge += grid_threads()) {
    const int64_t row = last_not_behind(op.row_indptr, op.num_rows, edge);
    op.edges[edge + op.shifts[row]] = static_cast<int32_t>(edge);
  }
}

}  // namespace

void group_rows_cuda(const RowGrouping& op, int64_t num_edges, const Launch& launch,
                     const Allocate& allocate) {
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const size_t count = op.segments.size();
  std::vector<int64_t> order(count), positions(count), first_rows, group_cuts(1, 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&op](int64_t a, int64_t b) {
    return op.segments[a].group < op.segments[b].group;
  });
  std::vector<GroupedSegment> segments;
  for (const RowSegment& segment : op.segments) first_rows.push_back(segment.first_row);
  for (size_t group = 0; group < op.first_owners.size(); ++group) {
    const auto begin = static_cast<int64_t>(segments.size());
    while (segments.size() < count &&
           op.segments[order[segments.size()]].group == static_cast<int64_t>(group)) {
      positions[order[segments.size()]] = static_cast<int64_t>(segments.size());
      segments.push_back({op.segments[order[segments.size()]], begin});
    }
    group_cuts.push_back(static_cast<int64_t>(segments.size()));
  }
  HostTable content;
  const size_t of_segments = content.add(segments), of_positions = content.add(positions);
  const size_t of_rows = content.add(first_rows), of_owners = content.add(op.first_owners);
  const size_t of_groups = content.add(group_cuts);
  const int64_t num_rows = op.num_rows();
  const int64_t shift_bytes = op.edges == nullptr ? 0 : num_rows * sizeof(int32_t);
  auto* const table = static_cast<char*>(allocate(content.num_bytes() + shift_bytes));
  content.write(table, stream);
  const auto numbers = [table](size_t place) {
    return reinterpret_cast<const int64_t*>(table + place);
  };
  Grouping grouping{};
  grouping.keys = op.keys;
  grouping.row_indptr = op.row_indptr;
  grouping.segments = reinterpret_cast<const GroupedSegment*>(table + of_segments);
  grouping.positions = numbers(of_positions);
  grouping.first_rows = numbers(of_rows);
  grouping.first_owners = numbers(of_owners);
  grouping.group_cuts = numbers(of_groups);
  grouping.num_segments = static_cast<int64_t>(count);
  grouping.num_groups = static_cast<int64_t>(op.first_owners.size());
  grouping.num_rows = num_rows;
  grouping.num_owners = op.num_owners;
  grouping.num_edges = num_edges;
  grouping.owners = op.owners;
  grouping.places = op.places;
  grouping.indptr = op.indptr;
  grouping.rows = op.rows;
  grouping.edge_indptr = op.edge_indptr;
  grouping.edges = op.edges;
  if (op.edges != nullptr)
    grouping.shifts = reinterpret_cast<int32_t*>(table + content.num_bytes());
  cut_grouped_rows<<<grid_for(op.num_owners + 1), kBlockThreads, 0, stream>>>(grouping);
  PG_LAUNCH_CHECK("cut_grouped_rows");
  if (num_rows == 0) return;
  place_grouped_rows<<<grid_for(num_rows), kBlockThreads, 0, stream>>>(grouping);
  PG_LAUNCH_CHECK("place_grouped_rows");
  if (op.edges == nullptr || num_edges == 0) return;
  place_grouped_edges<<<grid_for(num_edges), kBlockThreads, 0, stream>>>(grouping);
  PG_LAUNCH_CHECK("place_grouped_edges");
}

}  // namespace peergraph
