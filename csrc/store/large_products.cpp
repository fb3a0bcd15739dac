#include "store/large_products.h"

#include <cmath>
#include <cstring>

#include "common/element.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kProductsPerThread = 1 << 14;

template <typename T>
float load(const char* values, int64_t i) {
  T value;
  memcpy(&value, values + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return widen(value);
}

float scale_of(const LargeProducts& work, int64_t row) {
  float scale;
  memcpy(&scale, work.scales + row * work.scale_bytes, sizeof(scale));
  return scale;
}

float product_of(const LargeProducts& work, const char* query, int64_t row) {
  const char* values = work.rows + row * work.row_bytes;
  if (work.kind == ProductKind::kInt8) {
    int32_t sum = 0;
    for (int64_t i = 0; i < work.value_bytes; ++i)
      sum += int32_t{static_cast<int8_t>(query[i])} * static_cast<int8_t>(values[i]);
    return static_cast<float>(sum) * scale_of(work, row);
  }
  float sum = 0;
  for (int64_t i = 0; i < work.value_bytes / 2; ++i)
    sum += work.kind == ProductKind::kBfloat16
               ? load<Bfloat16>(query, i) * load<Bfloat16>(values, i)
               : load<Half>(query, i) * load<Half>(values, i);
  return sum;
}

/// The square of a row's norm is the product of the row with itself.
float square_of(const LargeProducts& work, int64_t row) {
  const float product = product_of(work, work.rows + row * work.row_bytes, row);
  return work.kind == ProductKind::kInt8 ? product * scale_of(work, row) : product;
}

}  // namespace

void large_products_cpu(const LargeProducts& work, int num_threads) {
  for (int64_t row = 0; row < work.num_rows; ++row) {
    const float square = square_of(work, row);
    if (!(square <= *work.largest_norm) && !std::isnan(*work.largest_norm))
      *work.largest_norm = square;
  }
  const int64_t grain = kProductsPerThread / std::max<int64_t>(1, work.num_rows) + 1;
  parallel_for(work.num_queries, grain, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) {
      for (int64_t row = 0; row < work.num_rows; ++row) {
        const float product = product_of(work, work.queries + q * work.value_bytes, row);
        if (!(product > work.thresholds[q])) continue;
        const int32_t place = work.counts[q]++;
        if (place >= work.capacity) continue;
        work.products[q * work.capacity + place] = product;
        work.places[q * work.capacity + place] = static_cast<int32_t>(row);
      }
    }
  });
}

}  // namespace peergraph
