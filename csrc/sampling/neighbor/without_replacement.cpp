#include "sampling/neighbor/without_replacement.h"

#include <numeric>

#include "common/vectors.h"

namespace peergraph {
namespace {

// With fewer lanes, compilers unroll the loops over lanes completely and do not vectorise them.
constexpr int64_t kLanes = 32;

/// Computes kLanes blocks of philox(), one lane after the other in each round.
PG_INLINE void make_blocks(const RandomStream& random, const uint32_t* positions,
                           const uint32_t* blocks, uint64_t* bits) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  // Halves of block_counter(): words of 32 bits, which fill a vector.
  const auto stream = static_cast<uint32_t>(random.stream);
  for (int64_t l = 0; l < kLanes; ++l) {
    c0[l] = positions[l];
    c1[l] = 0;
    c2[l] = blocks[l];
    c3[l] = stream;
  }
  PhiloxKey key(random.key());
  for (int round = 0; round < kPhiloxRounds; ++round, key.next())
    for (int64_t l = 0; l < kLanes; ++l) philox_round(c0[l], c1[l], c2[l], c3[l], key);
  for (int64_t l = 0; l < kLanes; ++l) {
    bits[2 * l] = join_words(c0[l], c1[l]);
    bits[2 * l + 1] = join_words(c2[l], c3[l]);
  }
}

}  // namespace

const uint64_t* DrawBits::make(const RandomStream& random) {
  const size_t padded = (num_blocks_ + kLanes - 1) / kLanes * kLanes;
  make_room(padded);  // the bits of the padding blocks are not read
  if (bits_.size() < 2 * padded) bits_.resize(2 * padded);
  with_vectors<64>([&](auto) PG_INLINED {
    for (size_t i = 0; i < padded; i += kLanes)
      make_blocks(random, &positions_[i], &blocks_[i], &bits_[2 * i]);
  });
  return bits_.data();
}

Picker::Picker() {
  static const auto in_order = [] {
    std::vector<uint16_t> order(kWrittenOut);
    std::iota(order.begin(), order.end(), 0);
    return order;
  }();
  order_ = in_order;
}

void Picker::pick(const uint64_t* bits, int64_t degree, int64_t count, int64_t* picks) {
  const auto draw = [&](int64_t i) {
    return static_cast<int64_t>(mul_high_u64(bits[i], static_cast<uint64_t>(degree - i)));
  };
  if (count <= kCompared) {
    // A position that is drawn once picks itself: only a position that is drawn again has
    // changed.
    bool again = false;
    for (int64_t i = 0; i < count; ++i) {
      picks[i] = draw(i);
      for (int64_t j = 0; j < i; ++j) again |= picks[j] == picks[i];
    }
    if (!again) return;
  }
  if (degree > kWrittenOut) {
    shuffle_.run(degree, count, draw, [&](int64_t i, int64_t pick) { picks[i] = pick; });
    return;
  }
  uint16_t* const order = order_.data();
  for (int64_t i = 0; i < count; ++i) {
    uint16_t& place = order[draw(i)];
    picks[i] = place;
    place = order[degree - 1 - i];
  }
  // Restores the changed positions: each of them is a pick, as its first draw picked itself.
  for (int64_t i = 0; i < count; ++i) order[picks[i]] = static_cast<uint16_t>(picks[i]);
}

}  // namespace peergraph
