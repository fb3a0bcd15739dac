// The two passes that sort an edge list larger than memory into CSC: edges are split into buckets,
// each for a range of destinations, and then every bucket is sorted alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/tensor_ref.h"

namespace peergraph {

/// The result of partition_edges.
struct PartitionedEdges {
  /// The number of edges whose ends are both in range. Others have not been written.
  int64_t num_taken = 0;
  /// Whether no destination is smaller than the one before it.
  bool is_sorted = true;
};

/// An edge in a bucket. All its values are in one place, so that splitting writes to one line of
/// the cache for each edge.
#pragma pack(push, 4)
template <typename Source, typename Edge = int32_t>
struct EdgeRecord {
  int32_t destination;  // minus the first one of the bucket
  Source source;
  Edge edge;
};
#pragma pack(pop)

/// Splits edges into buckets, edges of one bucket in the order given. Bucket b has the destinations
/// from (b << shift) to ((b + 1) << shift) - 1, counted from `first_destination`. Edges to other
/// destinations than the next `num_destinations`, or from other sources, are left out.
///
/// source, destination  [num_edges] int32 or int64, both of the same type
/// source_bytes         4 or 8, bytes of a source in a record
/// records              [num_edges] EdgeRecord, written; an edge has its position in this call
/// counts               [num_buckets] int64, written: edges of each bucket
PartitionedEdges partition_edges(const TensorRef& source, const TensorRef& destination,
                                 int64_t num_sources, int64_t first_destination,
                                 int64_t num_destinations, int shift, int source_bytes,
                                 const TensorRef& records, const TensorRef& counts,
                                 int num_threads);

/// Edges of one bucket from one call of partition_edges.
struct EdgeRun {
  TensorRef records;  // of more edges, maybe
  int64_t begin;      // the first edge of the run
  int64_t count;
  /// Added to each edge's id.
  int64_t first_edge;
};

/// Sorts the edges of one bucket by destination (a stable counting sort).
///
/// runs      fewer than 2^32 edges, with sources of the type of `indices`
/// degrees   [destinations of the bucket] int64, written
/// indices   [edges] int32 or int64, written: sources
/// edge_ids  [edges] int32 or int64, written if given
///
/// Runs on the caller's thread.
void sort_bucket(const std::vector<EdgeRun>& runs, const TensorRef& degrees,
                 const TensorRef& indices, const std::optional<TensorRef>& edge_ids);

}  // namespace peergraph
