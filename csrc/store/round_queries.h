// Rounds queries to the types that kernels multiply, and bounds the errors of their products.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/element.h"
#include "common/host_device.h"
#include "store/large_products.h"

namespace peergraph {

struct RoundQueries {
  ProductKind kind = ProductKind::kInt8;
  int64_t num_queries = 0;
  int64_t columns = 0;
  const double* queries = nullptr;  // [num_queries, columns]
  double relative = 0;              // error of a product of unit vectors, by rounding of others
  void* values = nullptr;           // [num_queries, columns]; times the scale they are nearly the
                                    // queries
  float* scales = nullptr;          // [num_queries]
  double* norms = nullptr;          // [num_queries] of the queries
  double* errors = nullptr;         // [num_queries] of a product with a row of norm 1
  float* rounded_up = nullptr;      // [num_queries] the same
};

/// What a query times the values of a type is, where `largest` is its largest magnitude.
PG_HD float query_scale(const RoundQueries& work, double largest) {
  constexpr float kLeastNormal = 1.17549435e-38F;
  const auto scale = static_cast<float>(work.kind == ProductKind::kInt8 ? largest / 127 : largest);
  return scale > kLeastNormal ? scale : kLeastNormal;
}

/// Writes a rounded value, and returns what rounding took from it.
PG_HD double round_value(const RoundQueries& work, int64_t query, int64_t column, double scale) {
  const int64_t at = query * work.columns + column;
  const double value = work.queries[at], scaled = value / scale;
  double stored;
  if (work.kind == ProductKind::kInt8) {
    stored = fmax(-127.0, fmin(127.0, rint(scaled)));
    static_cast<int8_t*>(work.values)[at] = static_cast<int8_t>(stored);
  } else if (work.kind == ProductKind::kBfloat16) {
    Bfloat16* half = static_cast<Bfloat16*>(work.values) + at;
    narrow(static_cast<float>(scaled), half);
    stored = widen(*half);
  } else {
    Half* half = static_cast<Half*>(work.values) + at;
    narrow(static_cast<float>(scaled), half);
    stored = widen(*half);
  }
  return value - stored * scale;
}

/// Writes the error of a query of which rounding took a vector of norm `rest`.
PG_HD void write_errors(const RoundQueries& work, int64_t query, double norm, double rest) {
  constexpr double kOfSums = 1.0 / (int64_t{1} << 40), kOfFloats = 1.0 / (1 << 20);
  const double error = rest * (1 + kOfSums) + norm * work.relative;
  work.norms[query] = norm;
  work.errors[query] = error;
  work.rounded_up[query] = static_cast<float>(error * (1 + kOfFloats));
}

void round_queries_cpu(const RoundQueries& work, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. A warp has a query.
void round_queries_cuda(const RoundQueries& work, int device, uintptr_t stream);
#endif

}  // namespace peergraph
