// The element types of features, and the types of their sums.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/host_device.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace peergraph {

enum class DType : int32_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBfloat16 = 3 };

/// Bytes of an element.
constexpr int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

/// The type of sums of elements of `dtype`.
constexpr DType sum_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
/// float, or double for double.
template <typename T>
using AccumulatorOf = typename Accumulator<T>::type;

PG_HD float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

PG_HD uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

PG_HD float widen(float value) { return value; }
PG_HD double widen(double value) { return value; }
PG_HD float widen(Bfloat16 value) { return float_of_bits(static_cast<uint32_t>(value.bits) << 16); }

PG_HD float widen(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // infinity and NaN
    return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // 2^112 rebiases the exponent, subnormal numbers included.
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f));
#endif
}

PG_HD void narrow(float value, float* out) { *out = value; }
PG_HD void narrow(double value, double* out) { *out = value; }

/// Rounds to nearest, ties to even. NaN becomes a NaN; which one differs on a GPU.
PG_HD void narrow(float value, Bfloat16* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out->bits) : "f"(value));
#else
  const uint32_t bits = bits_of_float(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out->bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

/// Rounds to nearest, ties to even.
PG_HD void narrow(float value, Half* out) {
#ifdef __CUDA_ARCH__
  out->bits = __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds to multiples of 2^-24
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
#endif
}

/// Calls body(T{}) with the type of `dtype`.
template <typename Body>
void with_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
    case DType::kFloat16:
      return body(Half{});
    case DType::kBfloat16:
      return body(Bfloat16{});
  }
  PG_CHECK_ARG(false, "dtype must be 0..3");
}

}  // namespace peergraph
