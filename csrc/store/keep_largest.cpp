#include "store/keep_largest.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kQueriesPerThread = 8;

void keep_of_query(const KeepLargest& work, int64_t query) {
  float* products = work.products + query * work.capacity;
  int64_t* places = work.places + query * work.capacity;
  const int64_t count = std::min<int64_t>(work.counts[query], work.capacity);
  for (int64_t i = work.kept[query]; i < count; ++i)
    if (is_excluded(work, query, places[i])) products[i] = -INFINITY;
  float kth = -INFINITY;
  if (count >= work.rank) {
    std::vector<float> sorted(products, products + count);
    std::nth_element(sorted.begin(), sorted.begin() + work.rank - 1, sorted.end(),
                     std::greater<>());
    kth = sorted[work.rank - 1];
  }
  const KeptBounds bounds = kept_bounds(work, query, kth);
  const bool has_overflowed = work.counts[query] > work.capacity;
  const int64_t end = has_overflowed ? work.kept[query] : count;
  int32_t num_kept = 0;
  for (int64_t i = 0; i < end; ++i) {
    if (!(products[i] > bounds.own)) continue;
    products[num_kept] = products[i];
    places[num_kept++] = places[i];
  }
  if (has_overflowed || was_wrong(work, work.bounds[query], bounds)) work.failed[query] = 1;
  work.counts[query] = work.kept[query] = num_kept;
  work.bounds[query] = std::max(work.bounds[query], bounds.others);
}

}  // namespace

void keep_largest_cpu(const KeepLargest& work, int num_threads) {
  parallel_for(work.num_queries, kQueriesPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t query = begin; query < end; ++query) keep_of_query(work, query);
  });
  for (int64_t query = 0; query < work.num_queries; ++query) {
    if (work.is_last) work.state[0] = std::max(work.state[0], work.counts[query]);
    work.state[1] |= work.failed[query];
  }
}

}  // namespace peergraph
