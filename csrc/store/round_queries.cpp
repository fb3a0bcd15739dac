#include "store/round_queries.h"

#include <algorithm>
#include <cmath>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kRoundedPerThread = 64;

void round_query(const RoundQueries& work, int64_t query) {
  const double* values = work.queries + query * work.columns;
  double largest = 0, square = 0, rest_square = 0;
  for (int64_t c = 0; c < work.columns; ++c) {
    largest = std::max(largest, std::fabs(values[c]));
    square += values[c] * values[c];
  }
  const float scale = query_scale(work, largest);
  for (int64_t c = 0; c < work.columns; ++c) {
    const double rest = round_value(work, query, c, scale);
    rest_square += rest * rest;
  }
  work.scales[query] = scale;
  write_errors(work, query, std::sqrt(square), std::sqrt(rest_square));
}

}  // namespace

void round_queries_cpu(const RoundQueries& work, int num_threads) {
  parallel_for(work.num_queries, kRoundedPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t query = begin; query < end; ++query) round_query(work, query);
  });
}

}  // namespace peergraph
