// What kernels that write large products share: thresholds, scales as integers, and the write.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "common/warp.cuh"
#include "store/large_products.h"

namespace peergraph {

template <ProductKind kKind>
using SumOf = std::conditional_t<kKind == ProductKind::kInt8, int32_t, float>;

constexpr float kRoundedUp = 1 + 1.0f / (1 << 20);  // by more than some roundings

/// What the products of a query must be above, in units of its scale: `bound - error * norm`.
struct QueryBound {
  float bound, error;

  QueryBound() = default;
  __device__ __forceinline__ QueryBound(const LargeProducts& work, int64_t query) {
    const float scale = work.query_scales[query];
    bound = work.bounds[query] / scale;
    error = work.errors[query] / scale;
  }
  __device__ __forceinline__ float threshold(float norm) const { return bound - error * norm; }
  /// No product is above it any more.
  __device__ __forceinline__ void close() { bound = INFINITY; }
};

__device__ __forceinline__ float scale_of(const LargeProducts& work, int64_t row) {
  return __ldg(reinterpret_cast<const float*>(work.scales + row * work.scale_bytes));
}

/// Adds the squares of the values in four bytes.
template <ProductKind kKind>
__device__ __forceinline__ SumOf<kKind> add_squares(SumOf<kKind> sum, uint32_t word) {
  if constexpr (kKind == ProductKind::kInt8) {
    return __dp4a(static_cast<int>(word), static_cast<int>(word), sum);
  } else if constexpr (kKind == ProductKind::kBfloat16) {
    const float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
    return sum + low * low + high * high;
  } else {
    const float low = __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
    const float high = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
    return sum + low * low + high * high;
  }
}

/// The scales of some rows as integers: `levels` times their part of the largest, rounded up, so
/// that sums are compared without a conversion. The levels are the most for which a sum times them
/// is an int32.
template <int kColumns>
class ScaleLevels {
 public:
  ScaleLevels() = default;
  __device__ __forceinline__ explicit ScaleLevels(float largest_scale)
      : per_scale_(fminf(kLevels / largest_scale, 3.4e38f)) {}

  __device__ __forceinline__ int of(float scale) const {
    return __float2int_ru(scale * per_scale_ * kRoundedUp);
  }

  /// A sum that, times the levels of its row, is not above this has no product above the threshold.
  __device__ __forceinline__ int limit(float threshold) const {
    if (!(threshold > 0)) return INT32_MIN;
    return __float2int_rd(threshold * per_scale_ * (2 - kRoundedUp)) - 1;
  }

 private:
  static constexpr float kLevels = (1 << 17) / kColumns;
  float per_scale_;
};

__device__ __forceinline__ void write_at(const LargeProducts& work, int64_t query, int64_t place,
                                         int64_t row, float product) {
  work.products[query * work.capacity + place] = product * work.query_scales[query];
  work.places[query * work.capacity + place] = work.first_place + row * work.place_step;
}

/// Writes a product behind the others of the query. Returns false where there is no room.
__device__ __forceinline__ bool append_product(const LargeProducts& work, int64_t query,
                                               int64_t row, float product) {
  const int64_t place = atomicAdd(work.counts + query, 1);
  if (place < work.capacity) write_at(work, query, place, row, product);
  return place < work.capacity;
}

/// Writes a product of a query with a row if it is above the threshold; `position` is the number of
/// the row in the stage. Returns false where there is no room.
__device__ __forceinline__ bool write_product(const LargeProducts& work, int64_t query, int64_t row,
                                              int64_t position, float product, float threshold) {
  if (!work.writes_all) return !(product > threshold) || append_product(work, query, row, product);
  write_at(work, query, position, row, product);
  return true;
}

/// Loads the bounds of a block's queries; those that pad their number have none.
__device__ __forceinline__ void load_bounds(const LargeProducts& work, int64_t first_query,
                                            int count, int padded, QueryBound* bounds) {
  for (int i = static_cast<int>(threadIdx.x); i < padded; i += static_cast<int>(blockDim.x)) {
    bounds[i] = QueryBound(work, first_query + min(i, count - 1));
    if (i >= count) bounds[i].close();
    if (i < count && blockIdx.x == 0 && work.writes_all)
      work.counts[first_query + i] = static_cast<int32_t>(num_stage_rows(work));
  }
}

/// Whether large_products_wgmma can do the work. The device is current.
bool has_wgmma(const LargeProducts& work, int device);
void large_products_wgmma(const LargeProducts& work, int device, cudaStream_t stream);

}  // namespace peergraph
