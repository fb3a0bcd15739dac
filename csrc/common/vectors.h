// Runs loops with the widest vectors of this CPU, in a binary compiled for the oldest CPUs.
#pragma once

#include <atomic>
#include <type_traits>

/// For functions of vectors: they get the instructions of their caller only if they are inlined.
#define PG_INLINE inline __attribute__((always_inline))
/// The same for lambdas, after their arguments.
#define PG_INLINED __attribute__((always_inline))

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define PG_WIDER_VECTORS 1
#endif

namespace peergraph {

/// Bytes of a vector that every CPU of the architecture has: SSE2, NEON.
constexpr int kLeastVectorBytes = 16;
/// Bytes of a vector that nearly every CPU has: AVX2, of 2013. It pays to compile less for others.
#ifdef PG_WIDER_VECTORS
constexpr int kUsualVectorBytes = 32;
#else
constexpr int kUsualVectorBytes = kLeastVectorBytes;
#endif

/// Bytes of the widest vectors that this CPU has.
inline int widest_vector_bytes() {
#ifdef PG_WIDER_VECTORS
  static const int bytes = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return 64;
    return __builtin_cpu_supports("avx2") ? 32 : kLeastVectorBytes;
  }();
  return bytes;
#else
  return kLeastVectorBytes;
#endif
}

/// The widest vectors that with_vectors may use, in bytes; tests reduce it.
inline std::atomic<int>& vector_bytes_limit() {
  static std::atomic<int> limit{64};
  return limit;
}

/// Bytes of the widest vectors that with_vectors uses now.
inline int vector_bytes() {
  const int limit = vector_bytes_limit().load(std::memory_order_relaxed);
  return limit < widest_vector_bytes() ? limit : widest_vector_bytes();
}

#ifdef PG_WIDER_VECTORS
template <typename Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), flatten,
               noinline)) void with_512_bits(const Body& body) {
  body(std::integral_constant<int, 64>{});
}

template <typename Body>
__attribute__((target("avx2"), flatten, noinline)) void with_256_bits(const Body& body) {
  body(std::integral_constant<int, 32>{});
}
#endif

template <typename Body>
__attribute__((flatten, noinline)) void with_128_bits(const Body& body) {
  body(std::integral_constant<int, kLeastVectorBytes>{});
}

/// Calls body(std::integral_constant<int, bytes of a vector>{}), compiled for such vectors.
/// Functions that `body` calls must be PG_INLINE. The build forbids fused products and sums, so the
/// results are the same for all widths. Each width from `kLeast` to `kMost` takes time to compile;
/// this CPU must have vectors of `kLeast` bytes.
template <int kMost, int kLeast = kLeastVectorBytes, typename Body>
void with_vectors(const Body& body) {
#ifdef PG_WIDER_VECTORS
  const int bytes = vector_bytes();
  if constexpr (kMost >= 64)
    if (bytes >= 64) return with_512_bits(body);
  if constexpr (kMost >= 32)
    if (kLeast >= 32 || bytes >= 32) return with_256_bits(body);
#endif
  if constexpr (kLeast <= kLeastVectorBytes) with_128_bits(body);
}

/// Prefetches the cache line at `address`, for reading.
PG_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

/// Prefetches into the second-level cache, for random reads some hundred reads ahead: it can have
/// several times as many outstanding lines as the first-level cache.
PG_INLINE void prefetch_far(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace peergraph
