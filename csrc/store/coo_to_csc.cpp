#include "store/coo_to_csc.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/check.h"

namespace peergraph {
namespace {

template <typename Id>
void check_range(const Id* ids, int64_t num_edges, int64_t num_nodes, const char* row) {
  for (int64_t e = 0; e < num_edges; ++e) {
    if (ids[e] < 0 || ids[e] >= num_nodes) {
      throw std::out_of_range("edge " + std::to_string(e) + ": " + row + " id " +
                              std::to_string(ids[e]) + " is out of range for " +
                              std::to_string(num_nodes) + " nodes");
    }
  }
}

template <typename Id>
bool sort_edges(const Id* source, const Id* destination, int64_t num_edges, int64_t num_sources,
                int64_t num_destinations, int64_t* indptr, Id* indices, int64_t* perm) {
  check_range(source, num_edges, num_sources, "source");
  check_range(destination, num_edges, num_destinations, "destination");
  std::fill(indptr, indptr + num_destinations + 1, 0);
  bool sorted = true;
  for (int64_t e = 0; e < num_edges; ++e) {
    ++indptr[destination[e] + 1];
    sorted = sorted && (e == 0 || destination[e - 1] <= destination[e]);
  }
  for (int64_t v = 0; v < num_destinations; ++v) indptr[v + 1] += indptr[v];
  std::vector<int64_t> next(indptr, indptr + num_destinations);
  for (int64_t e = 0; e < num_edges; ++e) {
    const int64_t at = next[destination[e]]++;
    indices[at] = source[e];
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
