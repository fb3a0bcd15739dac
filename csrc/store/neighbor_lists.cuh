// Copies one neighbour list. A CPU thread copies all of it; on a GPU, each lane of a group copies a
// part.
#pragma once

#include "common/ids.h"
#include "store/neighbor_lists.h"

namespace peergraph {

/// Writes list i of the chunk into one part, if it is in reach; lane `lane` of `lanes` takes every
/// lanes-th element.
PG_HD void write_list(const CscView& view, const CscPart& part, int64_t local,
                      const ListChunk& chunk, int64_t i, const IdMapView& sources, int lane,
                      int lanes) {
  if (part.indptr == nullptr) return;
  const int64_t begin = chunk.indptr[i], degree = chunk.indptr[i + 1] - begin;
  const int64_t to = part.indptr[local];
  for (int64_t k = lane; k < degree; k += lanes) {
    const int64_t source = load_id(chunk.indices, chunk.index_bytes, begin + k);
    store_id(part.indices, view.index_bytes, to + k, sources(source));
  }
  if (lane == 0) part.edge_begin[local] = chunk.edge_begin + begin;
}

PG_HD void scatter_list(const CscView& view, const ListChunk& chunk, int64_t i,
                        const IdMapView& destinations, const IdMapView& sources, int lane,
                        int lanes) {
  const Location at = view.locate(destinations(chunk.first + i));
  if (at.tier != Tier::kReplicated) {
    write_list(view, view.part(at), at.local, chunk, i, sources, lane, lanes);
    return;
  }
  for (int r = 0; r < view.num_replicas; ++r) {
    write_list(view, view.replicas[r], at.local, chunk, i, sources, lane, lanes);
  }
}

PG_HD void gather_list(const GraphView& graph, const ListChunk& chunk, int64_t i, int lane,
                       int lanes) {
  const NeighborList from = neighbors(graph, chunk.first + i);
  for (int64_t k = lane; k < from.size(); k += lanes) {
    const int64_t to = chunk.indptr[i] + k;
    store_id(chunk.indices, chunk.index_bytes, to, from[k]);
    if (chunk.edge_ids) chunk.edge_ids[to] = edge_id(graph, from, k);
  }
}

}  // namespace peergraph
