// Keeps the products of a query that can still be among its k largest, and finds the bound that
// products of further rows must exceed.
//
// A product f of a query is off by at most e = error * norm of the row. With K, the k-th largest,
// and R, the largest norm so far, k rows have real products of K - error * R or more. So a row with
// f <= K - error * R - e is not among the k.
//
// Of a part of the rows, the k-th largest is far below that of all. Where the bound is a guess, K
// is the largest of a lower rank in this part, which is still below the k-th of all almost surely.
// The last call finds the k-th of all: a query whose bound was above what this one gives has a
// wrong result.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"
#include "common/partition_point.h"
#include "store/large_products.h"

namespace peergraph {

struct KeepLargest {
  int64_t rank = 1;  // K is the product with this many at least as large; k in the last call
  bool is_last = false;
  bool guesses = false;  // whether a rank was below k
  int64_t num_queries = 0;
  int64_t capacity = 0;
  float* products = nullptr;            // [num_queries, capacity]
  int64_t* places = nullptr;            // [num_queries, capacity]
  int32_t* counts = nullptr;            // [num_queries] products that were found, also beyond the
                                        // capacity; then those that are kept
  int32_t* kept = nullptr;              // [num_queries] of them, kept by the call before
  uint8_t* failed = nullptr;            // [num_queries] becomes 1 where a guess was wrong, or where
                                        // there was no room: then only those of the call before are
                                        // kept
  const double* errors = nullptr;       // [num_queries] of a product with a row of norm 1
  double underflow = 0;                 // what norms do not bound, with a query and a row of norm 0
  const double* norms = nullptr;        // [num_queries] of the queries
  const float* largest_norm = nullptr;  // [1] the square
  int32_t* state = nullptr;  // [2] the most that are kept after the last call; 1: some have failed
  int64_t num_excluded = 0;
  int64_t num_places = 0;
  const int64_t* excluded = nullptr;  // query * num_places + place, ascending
  float* bounds = nullptr;            // [num_queries] are raised
};

struct KeptBounds {
  float others;  // less error * norm: what the products of other rows must be above
  double own;    // what those that were found must be above
};

/// Bounds for the k-th largest product.
PG_HD KeptBounds kept_bounds(const KeepLargest& work, int64_t query, float kth) {
  constexpr double kRounding = 1.0 / (1 << 19);
  if (!(kth > -INFINITY)) return {-INFINITY, -INFINITY};
  const double norm = norm_of(*work.largest_norm);
  const double error = work.errors[query] * norm * (1 + kRounding);
  const double slack = fabs(kth) * kRounding + 2 * work.underflow * (1 + work.norms[query] + norm);
  const double bound = kth - error - slack;
  return {static_cast<float>(bound - fabs(bound) * kRounding), bound - error};
}

/// Whether a guess of an earlier call was too high.
PG_HD bool was_wrong(const KeepLargest& work, float earlier_bound, const KeptBounds& bounds) {
  return work.is_last && work.guesses && earlier_bound > bounds.others;
}

PG_HD bool is_excluded(const KeepLargest& work, int64_t query, int64_t place) {
  const int64_t key = query * work.num_places + place;
  const int64_t at = partition_point(int64_t{0}, work.num_excluded,
                                     [&](int64_t i) { return work.excluded[i] < key; });
  return at < work.num_excluded && work.excluded[at] == key;
}

void keep_largest_cpu(const KeepLargest& work, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. A block has a query.
void keep_largest_cuda(const KeepLargest& work, int device, uintptr_t stream);
#endif

}  // namespace peergraph
