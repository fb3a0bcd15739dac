// Random numbers keyed by (seed, row id, column): a row has the same numbers on any rank and
// device.
#pragma once

#include <cstdint>

#include "common/element.h"
#include "common/exact.h"
#include "common/exponential.h"
#include "common/launch.h"
#include "common/philox.h"

namespace peergraph {

/// The rows for which numbers are drawn. Row i has the id row_ids[i]; equal ids get equal numbers.
struct RandomRows {
  uint64_t seed = 0;
  /// The address of the seed on the device that computes; null: `seed`. A CUDA graph reads the seed
  /// again at each replay.
  const uint64_t* seed_address = nullptr;
  const int64_t* row_ids = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t columns = 0;

  int64_t num_elements() const { return num_rows * columns; }

  PG_HD uint64_t key() const { return seed_address == nullptr ? seed : *seed_address; }
};

/// Uniform numbers in [0, 1), standard normal ones, or exponential ones of rate 1.
enum class Distribution : int32_t { kUniform = 0, kNormal = 1, kExponential = 2 };

struct FillRandom {
  RandomRows rows;
  Distribution distribution = Distribution::kUniform;
  DType dtype = DType::kFloat32;
  void* out = nullptr;  // [num_rows, columns]
};

/// Writes one number for each (row, column). Narrower types get the same numbers, rounded.
void fill_random_cpu(const FillRandom& op, int num_threads);

/// out = x * scale where the element is kept, else 0. The element is kept if its 32 random bits are
/// `threshold` or more. The gradient is the same function of the output's gradient.
struct DropoutRows {
  RandomRows rows;
  DType dtype = DType::kFloat32;
  uint64_t threshold = 0;  // 0 .. 2^32
  double scale = 1;
  const void* x = nullptr;  // [num_rows, columns]; null: ones
  void* out = nullptr;      // [num_rows, columns]; may be x
};

void dropout_rows_cpu(const DropoutRows& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As on the CPU, with the same results bit for bit; asynchronous.
void fill_random_cuda(const FillRandom& op, const Launch& launch);
void dropout_rows_cuda(const DropoutRows& op, const Launch& launch);
#endif

/// Columns that share a block of the generator: by 32 bits each, and by 64.
constexpr int kColumnsOf32 = 4, kColumnsOf64 = 2;

/// The numbers of one distribution out of 64 random bits. Only operations with one correct result
/// are used, so that CPU and GPU agree.
template <Distribution kDistribution>
struct NumberOf;

template <>
struct NumberOf<Distribution::kUniform> {
  PG_HD static double digits(uint64_t bits, int count) {
    return static_cast<double>(bits >> (64 - count));
  }
  PG_HD static void write(uint64_t bits, double* out) { *out = digits(bits, 53) * 0x1p-53; }
  PG_HD static void write(uint64_t bits, float* out) {
    *out = static_cast<float>(digits(bits, 24) * 0x1p-24);
  }
  PG_HD static void write(uint64_t bits, Half* out) {
    narrow(static_cast<float>(digits(bits, 11) * 0x1p-11), out);
  }
  PG_HD static void write(uint64_t bits, Bfloat16* out) {
    narrow(static_cast<float>(digits(bits, 8) * 0x1p-8), out);
  }
};

/// numerator(x) / denominator(x), for polynomials of degree 7 with the constant term last; the
/// denominator's is 1.
PG_HD double rational(const double (&numerator)[8], const double (&denominator)[7], double x) {
  double top = numerator[0], bottom = denominator[0];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 1; i < 8; ++i) top = add_exact(multiply_exact(top, x), numerator[i]);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 1; i < 7; ++i) bottom = add_exact(multiply_exact(bottom, x), denominator[i]);
  return divide_exact(top, add_exact(multiply_exact(bottom, x), 1.0));
}

/// The quantile of the normal distribution at the middle of one of 2^52 equal parts of (0, 1)
/// (Wichura 1988, algorithm AS 241; relative error 1e-16).
PG_HD double normal_quantile(uint64_t bits) {
  const double p = multiply_exact(static_cast<double>((bits >> 12 << 1) | 1u), 0x1p-53);
  const double q = add_exact(p, -0.5);
  if (q <= 0.425 && q >= -0.425) {
    const double above[8] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                             45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                             133.14166789178437745, 3.387132872796366608};
    const double below[7] = {5226.495278852545925,  28729.085735721942674, 39307.89580009271061,
                             21213.794301586595867, 5394.1960214247511077, 687.1870074920579083,
                             42.313330701600911252};
    return multiply_exact(q, rational(above, below, add_exact(0.180625, -multiply_exact(q, q))));
  }
  const double r = sqrt_exact(exponential(q < 0 ? bits : ~bits));
  double tail;
  if (r <= 5) {
    const double above[8] = {7.7454501427834140764e-4, .0227238449892691845833,
                             .24178072517745061177,    1.27045825245236838258,
                             3.64784832476320460504,   5.7694972214606914055,
                             4.6303378461565452959,    1.42343711074968357734};
    const double below[7] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                             .0151986665636164571966,   .14810397642748007459,
                             .68976733498510000455,     1.6763848301838038494,
                             2.05319162663775882187};
    tail = rational(above, below, add_exact(r, -1.6));
  } else {
    const double above[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                             .0012426609473880784386,   .026532189526576123093,
                             .29656057182850489123,     1.7848265399172913358,
                             5.4637849111641143699,     6.6579046435011037772};
    const double below[7] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                             1.8463183175100546818e-5,   7.868691311456132591e-4,
                             .0148753612908506148525,    .13692988092273580531,
                             .59983220655588793769};
    tail = rational(above, below, add_exact(r, -5.0));
  }
  return q < 0 ? -tail : tail;
}

template <>
struct NumberOf<Distribution::kNormal> {
  PG_HD static void write(uint64_t bits, double* out) { *out = normal_quantile(bits); }
  template <typename T>
  PG_HD static void write(uint64_t bits, T* out) {
    narrow(static_cast<float>(normal_quantile(bits)), out);
  }
};

template <>
struct NumberOf<Distribution::kExponential> {
  PG_HD static void write(uint64_t bits, double* out) { *out = exponential(bits); }
  template <typename T>
  PG_HD static void write(uint64_t bits, T* out) {
    narrow(static_cast<float>(exponential(bits)), out);
  }
};

/// Calls body(NumberOf<...>{}).
template <typename Body>
void with_distribution(Distribution distribution, const Body& body) {
  switch (distribution) {
    case Distribution::kUniform:
      return body(NumberOf<Distribution::kUniform>{});
    case Distribution::kNormal:
      return body(NumberOf<Distribution::kNormal>{});
    case Distribution::kExponential:
      return body(NumberOf<Distribution::kExponential>{});
  }
}

}  // namespace peergraph
