#include "store/large_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/element.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kLargeProductsPerThread = 1 << 14;

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

/// The products of a query with a block of rows, the stage's i-th.
void find_in_block(const LargeProducts& work, int64_t query, int64_t i, float norm) {
  const int64_t first = first_row(work, i);
  const float scale = work.query_scales[query];
  const float threshold = (work.bounds[query] - work.errors[query] * norm) / scale;
  float* products = work.products + query * work.capacity;
  int64_t* places = work.places + query * work.capacity;
  for (int64_t row = first; row < std::min(first + kBlockRows, work.num_rows); ++row) {
    const float product = product_of(work, work.queries + query * work.value_bytes, row);
    int64_t place = i * kBlockRows + row - first;
    if (!work.writes_all) {
      if (!(product > threshold)) continue;
      place = work.counts[query]++;
      if (place >= work.capacity) continue;
    }
    products[place] = product * scale;
    places[place] = work.first_place + row * work.place_step;
  }
}

}  // namespace

void large_products_cpu(const LargeProducts& work, int num_threads) {
  const int64_t blocks = num_blocks(work);
  std::vector<float> norms(blocks, 0.0F);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = first_row(work, i);
    float largest = 0;
    for (int64_t row = first; row < std::min(first + kBlockRows, work.num_rows); ++row) {
      const float square = square_of(work, row);
      if (!(square <= largest) && !std::isnan(largest)) largest = square;
    }
    if (!(largest <= *work.largest_norm) && !std::isnan(*work.largest_norm))
      *work.largest_norm = largest;
    norms[i] = norm_of(largest);
  }
  const int64_t grain = kLargeProductsPerThread / std::max<int64_t>(1, work.num_rows) + 1;
  parallel_for(work.num_queries, grain, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t q = begin; q < end; ++q) {
      for (int64_t i = 0; i < blocks; ++i) find_in_block(work, q, i, norms[i]);
      if (work.writes_all) work.counts[q] = static_cast<int32_t>(num_stage_rows(work));
    }
  });
}

}  // namespace peergraph
