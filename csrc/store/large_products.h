// Inner products of queries with all rows of a block that are above each query's threshold. The
// other products are not written: those of 1,000 queries with 100 million rows would be 400 GB.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

/// The type of the values of rows and queries. Products of int8 are exact integers, which the scale
/// of the row multiplies; the others are added in float32.
enum class ProductKind : int32_t { kInt8 = 0, kBfloat16 = 1, kFloat16 = 2 };

struct LargeProducts {
  ProductKind kind = ProductKind::kInt8;
  int64_t num_rows = 0;  // below 2^31
  const char* rows = nullptr;
  int64_t row_bytes = 0;         // from one row to the next
  int64_t value_bytes = 0;       // of the values of a row or a query: 64, 128, 256 or 512
  const char* scales = nullptr;  // int8: the float32 scale of the first row
  int64_t scale_bytes = 0;       // from one scale to the next
  int64_t num_queries = 0;
  const char* queries = nullptr;      // [num_queries, value_bytes]
  const float* thresholds = nullptr;  // [num_queries]
  int64_t capacity = 0;
  float* products = nullptr;      // [num_queries, capacity] in any order
  int32_t* places = nullptr;      // [num_queries, capacity] the row of each product
  int32_t* counts = nullptr;      // [num_queries] are added to, also beyond the capacity
  float* largest_norm = nullptr;  // [1] the largest square of a row's norm; NaN is the largest
};

void large_products_cpu(const LargeProducts& work, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. Products on the tensor cores: a warp holds some rows in
/// registers and multiplies them with the queries, which each block has in shared memory. Rows and
/// queries begin at multiples of 16 bytes. Needs a device of capability 8.0.
void large_products_cuda(const LargeProducts& work, int device, uintptr_t stream);
#endif

}  // namespace peergraph
