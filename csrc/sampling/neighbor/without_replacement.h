// Drawing without replacement (WholeGraph III-C1): draw i picks element r[i] of the degree - i
// remaining elements, and the last remaining element moves to its place. The CPU draws
// sequentially; the GPU computes the same picks in parallel by Algorithm 1 (neighbor.cu).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/philox.h"

namespace peergraph {

/// The sequential method without an array of `degree` elements: a small open-addressing map
/// holds only the positions whose element has changed. Reused from target to target.
class VirtualShuffle {
 public:
  /// Calls emit(i, pick) for i = 0 .. count-1, with r[i] out of draw(i); needs count < degree.
  template <typename Draw, typename Emit>
  void run(int64_t degree, int64_t count, const Draw& draw, const Emit& emit) {
    clear(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = draw(i);
      Entry& picked = find(r);
      emit(i, picked.position < 0 ? r : picked.element);
      const int64_t last = degree - 1 - i;
      const Entry& moved = find(last);
      const int64_t element = moved.position < 0 ? last : moved.element;
      picked = {r, element};
    }
  }

 private:
  struct Entry {
    int64_t position = -1;
    int64_t element = 0;
  };

  void clear(int64_t count) {
    int bits = 2;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    shift_ = 64 - bits;
    mask_ = (uint64_t{1} << bits) - 1;
    entries_.assign(mask_ + 1, Entry{});
  }

  Entry& find(int64_t position) {
    // Fibonacci hashing: the high bits of the product are well mixed.
    uint64_t at = (static_cast<uint64_t>(position) * 0x9E3779B97F4A7C15ull) >> shift_;
    while (entries_[at].position >= 0 && entries_[at].position != position) at = (at + 1) & mask_;
    return entries_[at];
  }

  std::vector<Entry> entries_;
  uint64_t mask_ = 0;
  int shift_ = 64;
};

/// The random bits of several targets. Counters are collected first; then one loop, which
/// compilers vectorise, computes all blocks.
class DrawBits {
 public:
  void clear() { num_blocks_ = 0; }

  /// Requests `count` draws for a position of the hop's target list.
  void add(int64_t position, int64_t count) {
    const size_t num_new = static_cast<size_t>(count + 1) / 2;
    make_room(num_blocks_ + num_new);
    for (size_t block = 0; block < num_new; ++block) {
      positions_[num_blocks_ + block] = static_cast<uint32_t>(position);
      blocks_[num_blocks_ + block] = static_cast<uint32_t>(block);
    }
    num_blocks_ += num_new;
  }

  int64_t size() const { return 2 * static_cast<int64_t>(num_blocks_); }

  /// Computes the requested draws. The draws of a position are contiguous and begin at an
  /// even index.
  const uint64_t* make(const RandomStream& random);

 private:
  void make_room(size_t blocks) {
    if (blocks <= positions_.size()) return;
    positions_.resize(2 * blocks);
    blocks_.resize(2 * blocks);
  }

  std::vector<uint32_t> positions_, blocks_;  // [num_blocks_], and room for more
  std::vector<uint64_t> bits_;
  size_t num_blocks_ = 0;
};

/// Converts random bits to picks, one target after the other. Lists of usual lengths are
/// shuffled in an array that is restored after each target, which needs neither search nor
/// clearing.
class Picker {
 public:
  Picker();

  /// Writes `count` picks out of 0 .. degree-1; needs count < degree.
  void pick(const uint64_t* bits, int64_t degree, int64_t count, int64_t* picks);

 private:
  static constexpr int64_t kWrittenOut = 1 << 11;
  static constexpr int64_t kCompared =
      6;  // up to so many draws are compared with each other, as they are mostly distinct

  std::vector<uint16_t> order_;  // [kWrittenOut] the identity permutation between targets
  VirtualShuffle shuffle_;
};

/// The work space of a thread, reused within a hop.
struct DrawScratch {
  DrawBits bits;
  Picker picker;
  std::vector<int64_t> picks[2];  // of two consecutive groups of targets
};

}  // namespace peergraph
