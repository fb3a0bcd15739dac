// Counting sort of an edge list into CSC (in-neighbours by destination).
#pragma once

#include <cstdint>

namespace peergraph {

/// Sorts the edges (source[e], destination[e]) by destination, edges of one destination in the
/// order given. Ids are int32 or int64 (`id_bytes` 4 or 8).
///
/// indptr  [num_destinations + 1]  written
/// indices [num_edges]             written, ids of the same width
/// perm    [num_edges] int64       written: CSC position -> position in the edge list
///
/// Throws std::out_of_range that names the first edge with an id out of range.
/// Returns whether the edges were sorted already (perm is then the identity).
bool coo_to_csc(const void* source, const void* destination, int id_bytes, int64_t num_edges,
                int64_t num_sources, int64_t num_destinations, int64_t* indptr, void* indices,
                int64_t* perm);

}  // namespace peergraph
