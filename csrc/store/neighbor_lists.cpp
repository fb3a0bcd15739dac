#include "store/neighbor_lists.h"

#include "common/parallel.h"
#include "store/neighbor_lists.cuh"

namespace peergraph {
namespace {

constexpr int64_t kListsPerThread = 4096;

}  // namespace

void scatter_lists_cpu(const CscView& view, const ListChunk& chunk, const IdMapView& destinations,
                       const IdMapView& sources, int num_threads) {
  parallel_for(chunk.count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scatter_list(view, chunk, i, destinations, sources, 0, 1);
  });
}

void gather_lists_cpu(const GraphView& graph, const ListChunk& chunk, int num_threads) {
  parallel_for(chunk.count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) gather_list(graph, chunk, i, 0, 1);
  });
}

void degrees_cpu(const GraphView& graph, int64_t first, int64_t count, int64_t* degrees,
                 int num_threads) {
  parallel_for(count, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) degrees[i] = num_neighbors(graph, first + i);
  });
}

}  // namespace peergraph
