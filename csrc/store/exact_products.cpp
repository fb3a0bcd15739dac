#include "store/exact_products.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kProductsPerThread = 256;
constexpr double kNone = -std::numeric_limits<double>::infinity();

double product_of(const ExactProducts& work, const double* query, int64_t id) {
  const char* row = work.table.find(id);
  const char* scales = scales_of(work, row, id);
  double sums[kProductLanes] = {};
  for (int64_t c = 0; c < work.columns; ++c)
    sums[c % kProductLanes] += query[c] * value_of(work, row, scales, c);
  for (int reach = kProductLanes / 2; reach > 0; reach /= 2)
    for (int lane = 0; lane < reach; ++lane) sums[lane] += sums[lane + reach];
  return sums[0];
}

}  // namespace

void exact_products_cpu(const ExactProducts& work, int num_threads) {
  const int64_t grain = kProductsPerThread / std::max<int64_t>(1, work.rows_of_query) + 1;
  parallel_for(work.num_queries, grain, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) {
      for (int64_t i = q * work.rows_of_query; i < (q + 1) * work.rows_of_query; ++i)
        work.products[i] = work.ids[i] < 0
                               ? kNone
                               : product_of(work, work.queries + q * work.columns, work.ids[i]);
    }
  });
}

void rank_products_cpu(const RankedProducts& work, int num_threads) {
  const ExactProducts& exact = work.exact;
  const int64_t grain = kProductsPerThread / std::max<int64_t>(1, exact.rows_of_query) + 1;
  parallel_for(exact.num_queries, grain, num_threads, [&](int64_t begin, int64_t end) {
    std::vector<Ranked> ranked;
    for (int64_t q = begin; q < end; ++q) {
      ranked.clear();
      for (int64_t i = 0; i < work.counts[q]; ++i) {
        const int64_t id = user_id_of(work, work.places[q * work.capacity + i]);
        ranked.push_back({product_of(exact, exact.queries + q * exact.columns, id), id});
      }
      std::sort(ranked.begin(), ranked.end());
      ranked.resize(work.k, {kNone, -1});
      for (int64_t i = 0; i < work.k; ++i) {
        work.products[q * work.k + i] = ranked[i].product;
        work.ids[q * work.k + i] = ranked[i].id;
      }
    }
  });
}

}  // namespace peergraph
