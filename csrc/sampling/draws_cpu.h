// Drawing without replacement for many targets at once on the CPU: the picks of VirtualShuffle.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/without_replacement.h"

namespace peergraph {

/// The random bits of some targets. Counters are collected first, and then all blocks made in a
/// loop that compilers vectorise.
class DrawBits {
 public:
  void clear() { num_blocks_ = 0; }

  /// Asks for `count` draws at a position of the hop's target list.
  void add(int64_t position, int64_t count) {
    const size_t wanted = static_cast<size_t>(count + 1) / 2;
    make_room(num_blocks_ + wanted);
    for (size_t block = 0; block < wanted; ++block) {
      positions_[num_blocks_ + block] = static_cast<uint32_t>(position);
      blocks_[num_blocks_ + block] = static_cast<uint32_t>(block);
    }
    num_blocks_ += wanted;
  }

  int64_t size() const { return 2 * static_cast<int64_t>(num_blocks_); }

  /// Makes them; those of a position follow each other, and begin at an even place.
  const uint64_t* make(const DrawSource& source);

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

/// Turns random bits into picks, one target after the other. Lists of usual lengths are shuffled in
/// an array that is kept in order between targets, which needs neither search nor clearing.
class Picker {
 public:
  Picker();

  /// Writes `count` picks out of 0 .. degree-1; needs count < degree.
  void pick(const uint64_t* bits, int64_t degree, int64_t count, int64_t* picks);

 private:
  static constexpr int64_t kWrittenOut = 1 << 11;
  static constexpr int64_t kCompared = 6;  // draws that are mostly distinct, and compared fast

  std::vector<uint16_t> order_;  // [kWrittenOut] every place holds itself
  VirtualShuffle shuffle_;
};

/// What a thread draws with, used again from one part of a hop to the next.
struct DrawScratch {
  DrawBits bits;
  Picker picker;
  std::vector<int64_t> picks[2];  // of two groups of targets, one behind the other
};

}  // namespace peergraph
