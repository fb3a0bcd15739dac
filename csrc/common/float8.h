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

/// Returns the bits of a finite float8 number as float32. `magnitude` has all its bits except the
/// sign; `bias_difference` is the exponent bias of float32 (127) less that of the float8 type.
PG_HD uint32_t widen_magnitude(uint32_t magnitude, uint32_t mantissa_bits,
                               uint32_t bias_difference) {
  const uint32_t shifted = magnitude << (23u - mantissa_bits);
  const bool is_subnormal = magnitude >> mantissa_bits == 0;
  const uint32_t normal = shifted + (bias_difference << 23);
  // Let m be the type's smallest normal number. A subnormal number is a number of [m, 2m) with the
  // same mantissa, less m.
  const uint32_t smallest = (bias_difference + 1u) << 23;
  const float subnormal = float_of_bits(shifted | smallest) - float_of_bits(smallest);
  return is_subnormal ? bits_of_float(subnormal) : normal;
}

PG_HD float widen(Float8E4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  const uint32_t finite = widen_magnitude(magnitude, 3, 120);
  return float_of_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}

PG_HD float widen(Float8E5m2 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  const uint32_t finite = widen_magnitude(magnitude, 2, 112);
  const uint32_t special = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  return float_of_bits(sign | (magnitude >= 0x7cu ? special : finite));
}

}  // namespace peergraph
