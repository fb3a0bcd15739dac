// Inner products of queries with rows of a table that can be among a query's largest. The other
// products are not written: those of 1,000 queries with 100 million rows would be 400 GB.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// The type of the values of rows and queries. Products of int8 are exact integers, which the scale
/// of the row multiplies; the others are added in float32.
enum class ProductKind : int32_t { kInt8 = 0, kBfloat16 = 1, kFloat16 = 2 };

constexpr int64_t kBlockRows = 128;
constexpr int64_t kProductGrowth = 4;  // blocks so far and of a stage, over blocks so far

/// A stage: every `block_step`-th block of 128 rows, or those whose number no larger step has.
struct LargeProducts {
  ProductKind kind = ProductKind::kInt8;
  int64_t num_rows = 0;  // below 2^31
  const char* rows = nullptr;
  int64_t row_bytes = 0;         // from one row to the next
  int64_t value_bytes = 0;       // of the values of a row or a query: 64, 128, 256 or 512
  const char* scales = nullptr;  // int8: the float32 scale of the first row
  int64_t scale_bytes = 0;       // from one scale to the next
  int64_t block_step = 1;
  bool skips_earlier = false;  // leave out the blocks of the step kProductGrowth * block_step
  bool writes_all = false;     // without thresholds; counts become the rows of the stage
  int64_t first_place = 0;     // of the first row
  int64_t place_step = 1;      // from one row to the next
  int64_t num_queries = 0;
  const char* queries = nullptr;        // [num_queries, value_bytes]
  const float* query_scales = nullptr;  // [num_queries] multiply the values of queries
  const float* bounds = nullptr;        // [num_queries] products are written if they are above
  const float* errors = nullptr;        // [num_queries] the bound, less this times the row's norm
  int64_t capacity = 0;
  float* products = nullptr;      // [num_queries, capacity] in any order
  int64_t* places = nullptr;      // [num_queries, capacity] of the row of each product
  int32_t* counts = nullptr;      // [num_queries] are added to, also beyond the capacity
  float* largest_norm = nullptr;  // [1] the largest square of a row's norm; NaN is the largest
};

/// Not below the norm of a row whose computed square this is, or of a smaller one. Squares of
/// values below 2^-63 are lost, of 512 columns at most.
PG_HD float norm_of(float square) {
  constexpr float kRounding = 1.0F / (1 << 17), kLost = 1.0F / (int64_t{1} << 58);
  return std::sqrt(square) * (1 + kRounding) + kLost;
}

/// The number of blocks of a stage.
PG_HD int64_t num_blocks(const LargeProducts& work) {
  const int64_t all = (work.num_rows + kBlockRows - 1) / kBlockRows;
  const int64_t of_step = (all + work.block_step - 1) / work.block_step;
  return work.skips_earlier ? of_step - (of_step + kProductGrowth - 1) / kProductGrowth : of_step;
}

/// The first row of a stage's i-th block.
PG_HD int64_t first_row(const LargeProducts& work, int64_t i) {
  const int64_t number = work.skips_earlier ? i + i / (kProductGrowth - 1) + 1 : i;
  return number * work.block_step * kBlockRows;
}

/// The number of rows of a stage.
PG_HD int64_t num_stage_rows(const LargeProducts& work) {
  const int64_t blocks = num_blocks(work);
  if (blocks == 0) return 0;
  const int64_t last = work.num_rows - first_row(work, blocks - 1);
  return (blocks - 1) * kBlockRows + (last < kBlockRows ? last : kBlockRows);
}

void large_products_cpu(const LargeProducts& work, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. Products on the tensor cores: a warp holds some rows in
/// registers and multiplies them with the queries, which each block has in shared memory. Rows and
/// queries begin at multiples of 16 bytes. Needs a device of capability 8.0.
void large_products_cuda(const LargeProducts& work, int device, uintptr_t stream);
#endif

}  // namespace peergraph
