// Runs loops with the widest vectors that this CPU has, in a binary compiled for the least.
#pragma once

#include <atomic>
#include <type_traits>

/// On functions of vectors: only where they are inlined do they get the instructions of their
/// caller.
#define PG_INLINE inline __attribute__((always_inline))
/// The same on lambdas, behind their arguments.
#define PG_INLINED __attribute__((always_inline))

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define PG_WIDER_VECTORS 1
#endif

namespace peergraph {

/// Bytes of a vector that every CPU of the architecture has: SSE2, NEON.
constexpr int kLeastVectorBytes = 16;

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

/// What with_vectors takes at most; tests narrow it.
inline std::atomic<int>& vector_bytes_limit() {
  static std::atomic<int> limit{64};
  return limit;
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

/// Calls body(std::integral_constant<int, bytes of a vector>{}), compiled for such vectors. What
/// `body` calls must be PG_INLINE. Products and sums are not fused in any of them (the build says
/// so), and so the results are the same. Each width up to `kMost` takes its time to compile.
template <int kMost, typename Body>
void with_vectors(const Body& body) {
#ifdef PG_WIDER_VECTORS
  const int limit = vector_bytes_limit().load(std::memory_order_relaxed);
  const int bytes = limit < widest_vector_bytes() ? limit : widest_vector_bytes();
  if constexpr (kMost >= 64)
    if (bytes >= 64) return with_512_bits(body);
  if constexpr (kMost >= 32)
    if (bytes >= 32) return with_256_bits(body);
#endif
  with_128_bits(body);
}

/// Asks for the cache line at `address`, for reading.
PG_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

/// The same into the second cache, for random reads of memory some hundred reads ahead: a core
/// waits for several times as many lines there as in the first one.
PG_INLINE void prefetch_far(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace peergraph
