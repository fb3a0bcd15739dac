// Copies neighbour lists between the user's CSC and the parts of a store's CSC.
#pragma once

#include <cstdint>

#include "memory/table_view.h"
#include "store/csc_view.h"
#include "store/peergraph.cuh"

namespace peergraph {

/// A piece of the user's CSC: the in-neighbours of destinations first .. first + count - 1.
struct ListChunk {
  int64_t first = 0;                // user id of the first destination
  int64_t count = 0;                // destinations
  const int64_t* indptr = nullptr;  // [count + 1] positions in `indices`, indptr[0] == 0
  void* indices = nullptr;          // [indptr[count]] user ids of sources, index_bytes each
  int32_t index_bytes = 8;
  int64_t num_indices = 0;      // room of `indices`
  int64_t edge_begin = 0;       // position of the chunk's first edge in the user's CSC
  int64_t* edge_ids = nullptr;  // [indptr[count]] for gather_lists; null: edge ids are not read
};

/// Writes the lists of a chunk into their part (every replica on the replicated tier), with sources
/// renumbered. Parts without an address are skipped. The parts' indptr must be written before. The
/// caller has checked that sources are in range.
void scatter_lists_cpu(const CscView& view, const ListChunk& chunk, const IdMapView& destinations,
                       const IdMapView& sources, int num_threads);
void scatter_lists_cuda(const CscView& view, const ListChunk& chunk, const IdMapView& destinations,
                        const IdMapView& sources, int device, uintptr_t stream);

/// Fills chunk.indices with the users' ids of the sources, and chunk.edge_ids with the ids of the
/// edges.
void gather_lists_cpu(const GraphView& graph, const ListChunk& chunk, int num_threads);
void gather_lists_cuda(const GraphView& graph, const ListChunk& chunk, int device,
                       uintptr_t stream);

/// degrees[i] = in-degree of the destination with user id first + i.
void degrees_cpu(const GraphView& graph, int64_t first, int64_t count, int64_t* degrees,
                 int num_threads);
void degrees_cuda(const GraphView& graph, int64_t first, int64_t count, int64_t* degrees,
                  int device, uintptr_t stream);

}  // namespace peergraph
