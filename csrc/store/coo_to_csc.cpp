#include "store/coo_to_csc.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/read_once.h"

namespace peergraph {
namespace {

[[noreturn]] void fail(int64_t edge, const char* row, int64_t id, int64_t num_nodes) {
  throw std::out_of_range("edge " + std::to_string(edge) + ": " + row + " id " +
                          std::to_string(id) + " is out of range for " + std::to_string(num_nodes) +
                          " nodes");
}

/// The id of an edge's node, checked.
template <typename Id>
Id node(const Id* ids, int64_t edge, int64_t num_nodes, const char* row) {
  const Id id = read_once(ids + edge);
  if (!is_below(id, num_nodes)) fail(edge, row, id, num_nodes);
  return id;
}

template <typename Id>
bool sort_edges(const Id* source, const Id* destination, int64_t num_edges, int64_t num_sources,
                int64_t num_destinations, int64_t* indptr, Id* indices, int64_t* perm) {
  for (int64_t e = 0; e < num_edges; ++e) node(source, e, num_sources, "source");
  std::fill(indptr, indptr + num_destinations + 1, 0);
  bool sorted = true;
  Id before = 0;
  for (int64_t e = 0; e < num_edges; ++e) {
    const Id to = node(destination, e, num_destinations, "destination");
    ++indptr[to + 1];
    sorted &= before <= to;
    before = to;
  }
  for (int64_t v = 0; v < num_destinations; ++v) indptr[v + 1] += indptr[v];
  std::vector<int64_t> next(indptr, indptr + num_destinations);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int64_t at = next[node(destination, e, num_destinations, "destination")]++;
    // Another thread may have changed the ids since they were counted.
    if (!is_below(at, num_edges))
      fail(e, "destination", read_once(destination + e), num_destinations);
    indices[at] = node(source, e, num_sources, "source");
    perm[at] = e;
  }
  return sorted;
}

}  // namespace

bool coo_to_csc(const void* source, const void* destination, int id_bytes, int64_t num_edges,
                int64_t num_sources, int64_t num_destinations, int64_t* indptr, void* indices,
                int64_t* perm) {
  PG_CHECK_ARG(id_bytes == 4 || id_bytes == 8, "id_bytes must be 4 or 8");
  if (id_bytes == 4) {
    return sort_edges(static_cast<const int32_t*>(source), static_cast<const int32_t*>(destination),
                      num_edges, num_sources, num_destinations, indptr,
                      static_cast<int32_t*>(indices), perm);
  }
  return sort_edges(static_cast<const int64_t*>(source), static_cast<const int64_t*>(destination),
                    num_edges, num_sources, num_destinations, indptr,
                    static_cast<int64_t*>(indices), perm);
}

}  // namespace peergraph
