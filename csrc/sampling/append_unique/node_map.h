// An epoch-tagged direct map from nodes to rows: no clearing between samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "common/check.h"
#include "sampling/append_unique/node_index.h"

namespace peergraph {

/// A direct map with one word per node, used by one sample after the other.
///
/// The low bits of a word hold an entry (see node_index.h), the high bits the epoch of the
/// sample that wrote the word. Epochs descend: the words of earlier samples and of a cleared
/// map are greater than any word of the current sample, so they are recognised as old, and a
/// minimum replaces them. The map is cleared when the epochs are used up, or when a sample
/// needs entries of more bits.
class NodeMap {
 public:
  /// `words`: [num_nodes], all kUnknown. Entries get `least_bits` bits or more.
  NodeMap(uint32_t* words, int64_t num_nodes, int least_bits)
      : words_(words), num_nodes_(num_nodes), least_bits_(least_bits), wanted_bits_(least_bits) {
    PG_CHECK_ARG(least_bits > 0 && least_bits <= kWordBits, "least_bits: expected 1 .. 32");
    set_bits(least_bits);
  }

  int64_t num_nodes() const { return num_nodes_; }

  /// Sets all bits of `num_bytes` bytes.
  using Clear = std::function<void(void* words, int64_t num_bytes)>;

  /// Begins a sample with an empty index; calls `clear` if the map must be cleared.
  void begin(const Clear& clear) {
    if (left_ == 0) restart(wanted_bits_, clear);
    --left_;
  }

  /// Makes sure that entries can hold rows up to `rows` and claims of `slots` slots. Returns
  /// whether the map was cleared for that; the nodes of the sample must then be inserted
  /// again.
  bool make_room(int64_t rows, int64_t slots, const Clear& clear) {
    const int bits = bits_for(rows, slots);
    wanted_bits_ = std::max(wanted_bits_, bits);
    if (bits <= bits_) return false;
    restart(bits, clear);
    wanted_bits_ = bits;
    --left_;
    return true;
  }

  /// The index of the sample that began last.
  NodeIndex index() const {
    NodeIndex index;
    index.direct = words_;
    index.base = static_cast<uint32_t>(left_ << bits_);
    index.first_claim = uint32_t{1} << (bits_ - 1);
    return index;
  }

 private:
  static constexpr int kWordBits = 32;

  /// Entries below the highest bit are rows; entries above are claims, and the greatest entry
  /// is kUnknown.
  static int bits_for(int64_t rows, int64_t slots) {
    int bits = 1;
    while (bits < kWordBits && std::max(rows, slots + 1) > int64_t{1} << (bits - 1)) ++bits;
    return bits;
  }

  void set_bits(int bits) {
    bits_ = bits;
    left_ = uint64_t{1} << (kWordBits - bits);
  }

  void restart(int bits, const Clear& clear) {
    if (num_nodes_ > 0) clear(words_, num_nodes_ * static_cast<int64_t>(sizeof(uint32_t)));
    set_bits(bits);
    // Gives up bits that only an exceptional sample needed.
    wanted_bits_ = least_bits_;
  }

  uint32_t* words_;
  int64_t num_nodes_;
  int least_bits_;
  int wanted_bits_;  // most bits that a sample needed since the map was cleared
  int bits_ = 0;
  uint64_t left_ =
      0;  // epochs that are left; also the epoch of the current sample, as they descend to 0
};

}  // namespace peergraph
