// The 8-bit floating point types of torch, widened by integer arithmetic, so that the CPU and the
// GPU get the same bits.
#pragma once

#include <cstdint>

#include "common/element.h"
#include "common/host_device.h"

namespace peergraph {

/// float8_e4m3fn: 4 bits of exponent (bias 7), 3 of mantissa, no infinity; at most 448.
struct Float8E4m3 {
  uint8_t bits;
};

/// float8_e5m2: 5 bits of exponent (bias 15), 2 of mantissa; at most 57344.
struct Float8E5m2 {
  uint8_t bits;
};

PG_HD float widen(Float8E4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  // A subnormal number is the mantissa of a number in [2^-6, 2^-5), less 2^-6.
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude << 20 | 0x3c800000u) - 0x1p-6f);
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t finite = magnitude < 8u ? subnormal : normal;
  return float_of_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}

PG_HD float widen(Float8E5m2 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  // A subnormal number is the mantissa of a number in [2^-14, 2^-13), less 2^-14.
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude << 21 | 0x38800000u) - 0x1p-14f);
  const uint32_t normal = (magnitude << 21) + (112u << 23);
  const uint32_t finite = magnitude < 4u ? subnormal : normal;
  const uint32_t special = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  return float_of_bits(sign | (magnitude >= 0x7cu ? special : finite));
}

}  // namespace peergraph
