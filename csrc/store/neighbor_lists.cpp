#include "store/neighbor_lists.h"

#include <stdexcept>
#include <string>

#include "common/parallel.h"
#include "common/read_once.h"
#include "store/neighbor_lists.cuh"

namespace peergraph {
namespace {

constexpr int64_t kListsPerThread = 4096;

/// Raises ValueError unless list i of the chunk has room for `degree` sources, or for its own.
void check_list(const ListChunk& chunk, int64_t i, int64_t degree) {
  const int64_t begin = read_once(chunk.indptr + i);
  if (begin < 0 || degree < 0 || begin > chunk.num_indices || degree > chunk.num_indices - begin)
    throw std::invalid_argument("indptr[" + std::to_string(i) + "] = " + std::to_string(begin) +
                                " and " + std::to_string(degree) + " sources exceed the " +
                                std::to_string(chunk.num_indices) + " indices");
}

}  // namespace

void scatter_lists_cpu(const CscView& view, const ListChunk& chunk, const IdMapView& destinations,
                       const IdMapView& sources, int num_threads) {
  parallel_for(chunk.count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      check_list(chunk, i, chunk.indptr[i + 1] - chunk.indptr[i]);
      scatter_list(view, chunk, i, destinations, sources, 0, 1);
    }
  });
}

void gather_lists_cpu(const GraphView& graph, const ListChunk& chunk, int num_threads) {
  parallel_for(chunk.count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      check_list(chunk, i, num_neighbors(graph, chunk.first + i));
      gather_list(graph, chunk, i, 0, 1);
    }
  });
}

void degrees_cpu(const GraphView& graph, int64_t first, int64_t count, int64_t* degrees,
                 int num_threads) {
  parallel_for(count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) degrees[i] = num_neighbors(graph, first + i);
  });
}

}  // namespace peergraph
