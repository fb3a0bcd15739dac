// Inner products of queries with rows of their own, whose bits depend on the two vectors only.
//
// Products of values are added in float64: those of the columns c, c + 32, c + 64, .. in this
// order, then the 32 sums in pairs: those of c and c + 16, then of c and c + 8, and so on.
#pragma once

#include <cstdint>

#include "memory/row_codec.h"
#include "memory/table_view.h"

namespace peergraph {

constexpr int kProductLanes = 32;

struct ExactProducts {
  TableView table;
  bool is_encoded = false;  // whether `codec` decodes rows; else they are of `dtype`
  bool has_scales_apart = false;
  TableView scales;  // if they are apart, with the rows of `table`
  RowCodec codec;
  DType dtype = DType::kFloat32;  // that users see
  int64_t columns = 0;
  int64_t num_queries = 0;
  const double* queries = nullptr;  // [num_queries, columns]
  int64_t rows_of_query = 0;
  const int64_t* ids = nullptr;  // [num_queries, rows_of_query] user ids in range, or -1
  double* products = nullptr;    // [num_queries, rows_of_query]; -infinity for -1
};

/// A value of a row as a gather returns it, in float64.
PG_HD double value_of(const ExactProducts& work, const char* row, const char* scales,
                      int64_t column) {
  if (!work.is_encoded) {
    switch (work.dtype) {
      case DType::kFloat32:
        return reinterpret_cast<const float*>(row)[column];
      case DType::kFloat64:
        return reinterpret_cast<const double*>(row)[column];
      case DType::kFloat16:
        return widen(reinterpret_cast<const Half*>(row)[column]);
      default:
        return widen(reinterpret_cast<const Bfloat16*>(row)[column]);
    }
  }
  const RowCodec& codec = work.codec;
  const bool two_bytes =
      codec.stored == StoredType::kFloat16 || codec.stored == StoredType::kBfloat16;
  float value = two_bytes
                    ? widen_stored<2>(codec.stored, reinterpret_cast<const uint16_t*>(row)[column])
                    : widen_stored<1>(codec.stored, reinterpret_cast<const uint8_t*>(row)[column]);
  if (codec.group_columns > 0)
    value *= reinterpret_cast<const float*>(scales)[column / codec.group_columns];
  if (work.dtype == DType::kFloat16) {
    Half half;
    narrow(value, &half);
    value = widen(half);
  } else if (work.dtype == DType::kBfloat16) {
    Bfloat16 half;
    narrow(value, &half);
    value = widen(half);
  }
  return value;
}

/// Where the scales of a row are; `row` and `scales` are those of its user id.
PG_HD const char* scales_of(const ExactProducts& work, const char* row, int64_t id) {
  if (!work.is_encoded) return nullptr;
  return work.has_scales_apart ? work.scales.find(id) : row + work.codec.scales_begin;
}

/// Finds the k largest products of each query, by falling product, then by rising id.
struct RankedProducts {
  ExactProducts
      exact;  // without ids and products; `rows_of_query` are at most kMostRanked on a GPU
  int64_t capacity = 0;
  const int64_t* places = nullptr;  // [num_queries, capacity] internal rows in range
  const int32_t* counts = nullptr;  // [num_queries] places of a query, at most `rows_of_query`
  int id_bytes = 8;
  const void* user_ids = nullptr;  // [rows of the table] of internal rows; null: they are equal
  int64_t k = 1;
  double* products = nullptr;  // [num_queries, k]; -infinity where there are fewer
  int64_t* ids = nullptr;      // [num_queries, k]; -1 where there are fewer
};

constexpr int64_t kMostRanked = 4096;

/// A product and its row, in the order of results.
struct Ranked {
  double product;
  int64_t id;

  PG_HD bool operator<(const Ranked& other) const {
    return product > other.product || (product == other.product && id < other.id);
  }
};

PG_HD int64_t user_id_of(const RankedProducts& work, int64_t place) {
  if (work.user_ids == nullptr) return place;
  return work.id_bytes == 4 ? static_cast<const int32_t*>(work.user_ids)[place]
                            : static_cast<const int64_t*>(work.user_ids)[place];
}

void exact_products_cpu(const ExactProducts& work, int num_threads);
void rank_products_cpu(const RankedProducts& work, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. A warp computes a product.
void exact_products_cuda(const ExactProducts& work, int device, uintptr_t stream);
/// Asynchronous. Each block sorts the products of one query in shared memory.
void rank_products_cuda(const RankedProducts& work, int device, uintptr_t stream);
#endif

}  // namespace peergraph
