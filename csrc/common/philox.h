// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): the same draws on CPU and GPU.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace peergraph {

struct Philox4x32 {
  uint32_t v[4];
};

PG_HD uint32_t mul_high_u32(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

PG_HD uint64_t mul_high_u64(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

PG_HD Philox4x32 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Philox4x32 c{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint32_t hi0 = mul_high_u32(0xD2511F53u, c.v[0]), lo0 = 0xD2511F53u * c.v[0];
    const uint32_t hi1 = mul_high_u32(0xCD9E8D57u, c.v[2]), lo1 = 0xCD9E8D57u * c.v[2];
    c = Philox4x32{{hi1 ^ c.v[1] ^ k0, lo1, hi0 ^ c.v[3] ^ k1, lo0}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// The block that draws 2k and 2k + 1 share.
PG_HD Philox4x32 draw_block(uint64_t seed, uint64_t stream, uint64_t position, uint32_t draw) {
  return philox(seed, position, (stream << 32) | (draw >> 1));
}

/// The 64 random bits of a draw out of its block. The lowest bit of `draw` tells the two draws of a
/// block apart.
PG_HD uint64_t draw_bits(const Philox4x32& block, uint32_t draw) {
  // Chosen by value: an index into the block would put it into local memory on the GPU.
  const uint32_t low = (draw & 1u) != 0 ? block.v[2] : block.v[0];
  const uint32_t high = (draw & 1u) != 0 ? block.v[3] : block.v[1];
  return (static_cast<uint64_t>(high) << 32) | low;
}

/// A draw from 0 .. range-1 out of its block: 64 random bits scaled, so the bias is below
/// range / 2^64.
PG_HD uint64_t scale_draw(const Philox4x32& block, uint32_t draw, uint64_t range) {
  return mul_high_u64(draw_bits(block, draw), range);
}

PG_HD uint64_t random_below(uint64_t range, uint64_t seed, uint64_t stream, uint64_t position,
                            uint32_t draw) {
  return scale_draw(draw_block(seed, stream, position, draw), draw, range);
}

}  // namespace peergraph
