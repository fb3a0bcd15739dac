// Drawing without replacement (WholeGraph III-C1): draw i picks element r[i] of the degree - i that
// remain, and the last remaining element takes its place. The CPU does that in turn; the GPU
// computes the same picks in parallel by Algorithm 1 (neighbor.cu).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/host_device.h"
#include "common/philox.h"

namespace peergraph {

/// Where the random numbers of one hop of one relation come from.
struct DrawSource {
  uint64_t seed = 0;
  uint64_t stream = 0;
  const uint64_t* seed_at = nullptr;  // where the seed lies instead, in memory of the device

  PG_HD uint64_t key() const { return seed_at == nullptr ? seed : *seed_at; }

  /// r[draw] of the target at `position` of the hop's target list.
  PG_HD int64_t draw(int64_t degree, int64_t position, int64_t draw) const {
    return static_cast<int64_t>(random_below(static_cast<uint64_t>(degree - draw), key(), stream,
                                             static_cast<uint64_t>(position),
                                             static_cast<uint32_t>(draw)));
  }
};

/// The sequential method, without writing out the `degree` elements: only the positions whose
/// element has changed are kept, in a small open-addressing map. Reused from target to target.
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

}  // namespace peergraph
