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
  /// The number of edges with an id out of range. If there are any, nothing has been written.
  int64_t num_bad = 0;
  /// Whether no destination is smaller than the one before it.
  bool is_sorted = true;
};

/// Splits edges into buckets, edges of one bucket in the order given. Bucket b has the destinations
/// from b << shift to ((b + 1) << shift) - 1.
///
/// source, destination  [num_edges] int32 or int64, both of the same type
/// edge_ids             [num_edges] int64; without them, an edge has its position in this call
/// out_destination      [num_edges] int32: destination minus the first one of the bucket
/// out_source           [num_edges] int32 or int64
/// out_edge             [num_edges] int32, int64 with edge_ids
/// counts               [num_buckets] int64, edges of each bucket
PartitionedEdges partition_edges(const TensorRef& source, const TensorRef& destination,
                                 const std::optional<TensorRef>& edge_ids, int64_t num_sources,
                                 int64_t num_destinations, int shift,
                                 const TensorRef& out_destination, const TensorRef& out_source,
                                 const TensorRef& out_edge, const TensorRef& counts,
                                 int num_threads);

/// Edges of one bucket from one call of partition_edges.
struct EdgeRun {
  TensorRef destination;  // [count] int32
  TensorRef source;       // [count] int32 or int64
  TensorRef edge;         // [count] int32 or int64
  /// Added to each edge's id.
  int64_t first_edge;

  int64_t count() const { return destination.num_elements(); }
};

/// Sorts the edges of one bucket by destination (a stable counting sort).
///
/// runs      sources of one type, and edges of one type
/// by_edge   sort the edges of a destination by their ids
/// degrees   [destinations of the bucket] int64, written
/// indices   [edges] int32 or int64, written: sources
/// edge_ids  [edges] int32 or int64, written if given
///
/// Runs on the caller's thread.
void sort_bucket(const std::vector<EdgeRun>& runs, bool by_edge, const TensorRef& degrees,
                 const TensorRef& indices, const std::optional<TensorRef>& edge_ids);

}  // namespace peergraph
