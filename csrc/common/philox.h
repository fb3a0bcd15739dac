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

constexpr int kPhiloxRounds = 10;

/// The key as the rounds use it.
struct PhiloxKey {
  uint32_t low, high;

  PG_HD explicit PhiloxKey(uint64_t key)
      : low(static_cast<uint32_t>(key)), high(static_cast<uint32_t>(key >> 32)) {}

  PG_HD void next() {
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
};

/// One round on the four words of a counter.
PG_HD void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, PhiloxKey key) {
  const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key.low;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key.high;
  c3 = static_cast<uint32_t>(p0);
}

PG_HD Philox4x32 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high,
                        int rounds = kPhiloxRounds) {
  PhiloxKey keys(key);
  Philox4x32 c{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < rounds; ++round, keys.next())
    philox_round(c.v[0], c.v[1], c.v[2], c.v[3], keys);
  return c;
}

/// The high counter of the block that draws 2k and 2k + 1 share; the low one is the position.
PG_HD uint64_t block_counter(uint64_t stream, uint32_t draw) {
  return (stream << 32) | (draw >> 1);
}

PG_HD Philox4x32 draw_block(uint64_t seed, uint64_t stream, uint64_t position, uint32_t draw) {
  return philox(seed, position, block_counter(stream, draw));
}

PG_HD uint64_t join_words(uint32_t low, uint32_t high) {
  return (static_cast<uint64_t>(high) << 32) | low;
}

/// The 64 random bits of a draw out of its block. The lowest bit of `draw` tells the two draws of a
/// block apart.
PG_HD uint64_t draw_bits(const Philox4x32& block, uint32_t draw) {
  // Chosen by value: an index into the block would put it into local memory on the GPU.
  return (draw & 1u) != 0 ? join_words(block.v[2], block.v[3]) : join_words(block.v[0], block.v[1]);
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

/// The random numbers of one operation, such as one hop by one relation.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t stream = 0;
  const uint64_t* seed_at = nullptr;  // address of the seed in device memory; null: `seed`

  PG_HD uint64_t key() const { return seed_at == nullptr ? seed : *seed_at; }

  /// A draw from 0 .. degree-draw-1 for the item at `position`: draw number `draw` out of `degree`
  /// elements without replacement.
  PG_HD int64_t draw(int64_t degree, int64_t position, int64_t draw) const {
    return static_cast<int64_t>(random_below(static_cast<uint64_t>(degree - draw), key(), stream,
                                             static_cast<uint64_t>(position),
                                             static_cast<uint32_t>(draw)));
  }
};

}  // namespace peergraph
