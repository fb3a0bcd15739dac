// Joins the edges of several relations into one matrix, whose rows and columns are the pairs of a
// relation and a node that have edges. One call takes the place of some fifty operations on
// tensors, which the host of a typed layer would wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "common/allocate.h"
#include "common/host_device.h"
#include "common/ids.h"
#include "common/launch.h"

namespace peergraph {

/// The edges of one relation. Edge e belongs to row key row_base + destination * row_stride and to
/// column key column_base + source. Without sources, edge e is one from node e to node e.
struct JoinedRelation {
  const void* sources = nullptr;  // [num_edges]
  const void* destinations = nullptr;
  int32_t id_bytes = 8;  // of both
  int64_t num_edges = 0;
  int64_t num_sources = 0;  // bounds of the ids
  int64_t num_destinations = 0;
  int64_t column_base = 0;
  int64_t row_base = 0;
  int64_t row_stride = 1;
  int64_t first_edge = 0;  // the edges of relations before
};

/// Which keys have numbers, in ascending order.
enum class KeyNumbering {
  kUsed,   // those that have edges
  kFixed,  // these, and as many others as any edges could use: shapes do not depend on the edges
  kAll,    // all: a number is the key
};

/// Segments of keys are given by their first keys; the first of these is 0.
struct KeySegments {
  int64_t num_keys = 0;         // below 2^31
  std::vector<int64_t> starts;  // [segments]
  // [segments + 1] the first number of each segment, for kFixed. Numbers that a segment does not
  // need have no edges: rows are those of its last key, columns those of the keys at their own
  // place, because sums of gradients by key would wait for each other.
  std::vector<int64_t> fixed_cuts;
};

struct EdgeJoin {
  std::vector<JoinedRelation> relations;  // at least one, fewer than 2^31 edges together
  KeySegments rows, columns;
  KeyNumbering numbering = KeyNumbering::kUsed;  // of both
  int32_t* row_keys = nullptr;      // [min(keys, edges)] less the segment's first key; not for kAll
  int32_t* row_segments = nullptr;  // likewise
  int32_t* column_keys = nullptr;
  int32_t* indptr = nullptr;        // [min(keys, edges) + 1], or [keys + 1] for kAll
  int32_t* indices = nullptr;       // [edges] columns, by row, then in the order of the edges
  int32_t* edge_ids = nullptr;      // [edges] of the edges by row, or null
  int32_t* by_column = nullptr;     // [likewise, by columns] of the transpose, or null
  int32_t* rows_of = nullptr;       // [edges] the rows, by column, then in the order of `indices`
  int32_t* positions = nullptr;     // [edges] likewise, in `indices`
  int64_t chunk = 0, long_row = 0;  // of the schedule of kernels, for the counts of chunks

  int64_t num_edges() const { return relations.back().first_edge + relations.back().num_edges; }
};

/// The keys of a kind that have numbers. Chunks are counted for kUsed only.
struct JoinedKeys {
  std::vector<int64_t> cuts;   // [segments + 1] those of earlier segments
  std::vector<int64_t> lasts;  // [segments] the last key of each less its first one; -1: none
  int64_t chunks = 0;          // into which a GPU cuts its long lists of edges
};

struct JoinedCounts {
  JoinedKeys rows, columns;
  int64_t bad_edge = -1;  // the first edge with an id out of range: nothing else is valid then
};

/// Of segments in which every key has its own number.
JoinedKeys all_keys(const KeySegments& segments);

JoinedCounts join_edges_cpu(const EdgeJoin& op);

#ifdef PEERGRAPH_CUDA
/// As on the CPU. If used keys are numbered, waits for the stream until they are. Else an edge with
/// an id out of range is taken for one between nodes 0, and -1 is returned for it.
JoinedCounts join_edges_cuda(const EdgeJoin& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
