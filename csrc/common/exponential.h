// Exponential random numbers with the same bits on CPU and GPU. They use only IEEE operations
// that are rounded correctly, and never fused; log() of the libraries differs in the last bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/exact.h"
#include "common/host_device.h"

namespace peergraph {

PG_HD uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

PG_HD double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Converts 64 random bits to Exp(1): -log(u), with u the middle of one of 2^52 equal parts of
/// (0, 1).
PG_HD double exponential(uint64_t random) {
  const uint64_t odd = ((random >> 12) << 1) | 1u;  // u = odd / 2^53
  const uint64_t bits = bits_of(static_cast<double>(odd));
  int exponent = static_cast<int>(bits >> 52) - 1023 - 53;
  double m = double_of((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);  // u = m 2^exponent
  if (m > 1.4142135623730951) {
    m = multiply_exact(m, 0.5);
    ++exponent;
  }
  // log m = 2 artanh s; with |s| < 0.172 eleven terms reach the precision of a double.
  const double s = divide_exact(add_exact(m, -1.0), add_exact(m, 1.0));
  const double z = multiply_exact(s, s);
  const double terms[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                          1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  double sum = 1.0 / 21;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (double term : terms) sum = add_exact(multiply_exact(sum, z), term);
  const double log_m = multiply_exact(multiply_exact(2.0, s), sum);
  return -add_exact(multiply_exact(exponent, 0.6931471805599453), log_m);
}

}  // namespace peergraph
