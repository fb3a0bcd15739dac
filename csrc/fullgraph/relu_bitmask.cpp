#include "fullgraph/relu_bitmask.h"

#include <algorithm>

#include "common/parallel.h"
#include "common/vectors.h"

namespace peergraph {
namespace {

constexpr int64_t kBytesPerThread = 4096;

/// The bits of a whole byte's elements, or of `count` of them.
template <typename T>
PG_INLINE uint8_t relu_of(const T* x, T* out, int count) {
  unsigned bits = 0;
  for (int i = 0; i < count; ++i) {
    const bool keep = !(widen(x[i]) <= 0);
    bits |= static_cast<unsigned>(keep) << i;
    out[i] = keep ? x[i] : T{};
  }
  return static_cast<uint8_t>(bits);
}

template <typename T>
PG_INLINE void apply_to(const T* x, unsigned bits, T* out, int count) {
  for (int i = 0; i < count; ++i) out[i] = (bits >> i & 1u) != 0 ? x[i] : T{};
}

/// Calls body(byte, first element, elements) for each byte of the mask, in several threads.
template <typename Body>
void each_byte(const BitmaskOp& op, int num_threads, const Body& body) {
  const auto walk = [&](int64_t begin, int64_t end) {
    with_vectors<64>([&](auto) PG_INLINED {
      const int64_t whole = std::min(end, op.num_elements / kElementsOfByte);
      for (int64_t b = begin; b < whole; ++b) body(b, b * kElementsOfByte, kElementsOfByte);
      for (int64_t b = std::max(begin, whole); b < end; ++b)
        body(b, b * kElementsOfByte, static_cast<int>(op.num_elements - b * kElementsOfByte));
    });
  };
  parallel_for(op.num_bytes(), kBytesPerThread, num_threads, walk, torch_team());
}

}  // namespace

void relu_bitmask_cpu(const BitmaskOp& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* x = static_cast<const T*>(op.x);
    auto* out = static_cast<T*>(op.out);
    const auto write = [&](int64_t byte, int64_t first, int count)
                           PG_INLINED { op.bits[byte] = relu_of(x + first, out + first, count); };
    each_byte(op, num_threads, write);
  });
}

void apply_bitmask_cpu(const BitmaskOp& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* x = static_cast<const T*>(op.x);
    auto* out = static_cast<T*>(op.out);
    const auto write = [&](int64_t byte, int64_t first, int count)
                           PG_INLINED { apply_to(x + first, op.bits[byte], out + first, count); };
    each_byte(op, num_threads, write);
  });
}

}  // namespace peergraph
