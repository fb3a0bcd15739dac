// Copies to memory that is not read again soon, past the caches: the CPU need not read a line
// before it writes all of it.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/vectors.h"

#ifdef PG_WIDER_VECTORS
#include <emmintrin.h>
#endif

namespace peergraph {

/// Copies to a multiple of 16 bytes; a multiple of 64 is faster. Other threads see the values after
/// finish_streams.
inline void stream_copy(void* to, const void* from, int64_t num_bytes) {
#ifdef PG_WIDER_VECTORS
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0 && num_bytes % sizeof(__m128i) == 0) {
    auto* out = static_cast<__m128i*>(to);
    const auto* in = static_cast<const __m128i*>(from);
    for (int64_t i = 0; i < num_bytes / static_cast<int64_t>(sizeof(__m128i)); ++i)
      _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
    return;
  }
#endif
  std::memcpy(to, from, num_bytes);
}

/// Ends the copies of this thread.
inline void finish_streams() {
#ifdef PG_WIDER_VECTORS
  _mm_sfence();
#endif
}

}  // namespace peergraph
