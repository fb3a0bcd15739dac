// Adjacent values of a narrow row on a GPU: read at once, widened two or four at a time.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "common/load_here.cuh"
#include "memory/row_codec.h"

namespace peergraph {

/// The byte where the scale of column `column` is: in the row, or in the row of scales if they are
/// apart; 0 where there are no scales.
__device__ __forceinline__ int64_t scale_of_column(const RowCodec& codec, int64_t column) {
  if (codec.group_columns == 0) return 0;
  if (codec.group_columns >= codec.columns) return codec.scales_begin;
  const auto group_columns = static_cast<uint32_t>(codec.group_columns);
  return codec.scales_begin + static_cast<uint32_t>(column) / group_columns * 4;
}

/// The types of stored values that kernels are compiled for: float16 and bfloat16, float8 of both
/// kinds, int8 with scales.
enum class StoredKind { kFloat16, kFloat8, kInt8 };

constexpr int bytes_of(StoredKind kind) { return kind == StoredKind::kFloat16 ? 2 : 1; }

/// Calls body(std::integral_constant<StoredKind, the kind of `stored`>{}).
template <typename Body>
void with_stored_kind(StoredType stored, const Body& body) {
  switch (stored) {
    case StoredType::kFloat16:
    case StoredType::kBfloat16:
      return body(std::integral_constant<StoredKind, StoredKind::kFloat16>{});
    case StoredType::kFloat8E4m3:
    case StoredType::kFloat8E5m2:
      return body(std::integral_constant<StoredKind, StoredKind::kFloat8>{});
    case StoredType::kInt8:
      return body(std::integral_constant<StoredKind, StoredKind::kInt8>{});
  }
}

/// kCount adjacent stored values, and the scale that they have in common.
template <StoredKind kKind, int kCount>
class StoredValues {
 public:
  /// Reads the values from column `first` on. `scale`: where the scale of these columns is.
  __device__ __forceinline__ void load_here(const char* row, int64_t first, const char* scale) {
    raw_ = peergraph::load_here<kBytes * kCount>(row + first * kBytes);
    if constexpr (kKind == StoredKind::kInt8) scale_ = peergraph::load_here<4>(scale);
  }

  /// As load_here if `wanted`; otherwise the values are zeros.
  __device__ __forceinline__ void load_if(bool wanted, const char* row, int64_t first,
                                          const char* scale) {
    peergraph::load_if(wanted, row + first * kBytes, &raw_);
    if constexpr (kKind == StoredKind::kInt8) peergraph::load_if(wanted, scale, &scale_);
  }

  /// The values in the users' dtype T. The branches are the same for a whole grid.
  template <typename T>
  __device__ __forceinline__ void widen_to(StoredType stored, T (&out)[kCount]) const {
    float values[kCount];
    if constexpr (kKind == StoredKind::kInt8) {
      widen_int8(values);
    } else if constexpr (kKind == StoredKind::kFloat8) {
      stored == StoredType::kFloat8E4m3 ? widen_float8<__NV_E4M3>(values)
                                        : widen_float8<__NV_E5M2>(values);
    } else {
      stored == StoredType::kBfloat16 ? widen_bfloat16(values) : widen_float16(values);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) narrow(values[i], &out[i]);
  }

 private:
  static constexpr int kBytes = bytes_of(kKind);

  __device__ __forceinline__ void widen_bfloat16(float (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t word = raw_.words[i / 2];
      out[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
    }
  }

  __device__ __forceinline__ void widen_float16(float (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      out[i] = __half2float(
          __ushort_as_half(static_cast<unsigned short>(raw_.words[i / 2] >> i % 2 * 16)));
  }

  __device__ __forceinline__ void widen_int8(float (&out)[kCount]) const {
    const float scale = __uint_as_float(scale_.words[0]);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      out[i] = static_cast<float>(static_cast<int8_t>(raw_.words[i / 4] >> i % 4 * 8)) * scale;
  }

  /// Two values at a time, through float16, which has all values of both types.
  template <__nv_fp8_interpretation_t kType>
  __device__ __forceinline__ void widen_float8(float (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const auto two = static_cast<__nv_fp8x2_storage_t>(raw_.words[i / 4] >> i % 4 * 8);
      const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, kType)));
      out[i] = wide.x;
      if (i + 1 < kCount) out[i + 1] = wide.y;
    }
  }

  Words<kBytes * kCount> raw_ = {};
  Words<4> scale_ = {};
};

}  // namespace peergraph
