#include "sampling/neighbor/neighbor.h"

#include <algorithm>
#include <vector>

#include "common/vectors.h"
#include "sampling/neighbor/without_replacement.h"

namespace peergraph {
namespace {

constexpr int64_t kTargetsAhead = 32;
constexpr int64_t kTargetsAtATime = 64;
constexpr int64_t kEdgesAtATime = 256;

/// Where the words of a destination's list are.
struct ListWords {
  const CscPart& part;
  int64_t local;

  ListWords(const CscView& csc, int64_t destination) : ListWords(csc, csc.locate(destination)) {}
  ListWords(const CscView& csc, const Location& at) : part(csc.part(at)), local(at.local) {}
};

/// Samples the edges of a few targets at a time: one loop computes all random numbers, the next
/// all picks, the next reads all neighbours, so that a core waits for many lists at once. The
/// reads of one group follow the picks of the next group; meanwhile the prefetched lists
/// arrive.
template <typename Id>
class Groups {
 public:
  Groups(const CscView& csc, const Hop& hop, const Neighbors* lists, DrawScratch& scratch,
         PickOrder order)
      : csc_(csc), hop_(hop), lists_(lists), scratch_(scratch), order_(order) {}

  void run(int64_t begin, int64_t end) {
    int64_t* picks = scratch_.picks[0].data();
    int64_t middle = pick(begin, end, scratch_.picks[0], picks);
    for (int next = 1; begin < end; next = 1 - next) {
      int64_t* next_picks = nullptr;
      const int64_t behind = pick(middle, end, scratch_.picks[next], next_picks);
      read(begin, middle, picks);
      begin = middle;
      middle = behind;
      picks = next_picks;
    }
  }

 private:
  static constexpr int64_t kIdsPerLine = 64 / sizeof(Id);

  int64_t count_of(int64_t target) const { return hop_.offsets[target + 1] - hop_.offsets[target]; }

  bool draws(int64_t target) const { return count_of(target) < lists_[target].degree; }

  /// Picks for as many targets from `begin` on as fit into the cache of a core, and
  /// prefetches the picked neighbours; returns the end of these targets.
  int64_t pick(int64_t begin, int64_t limit, std::vector<int64_t>& buffer, int64_t*& first_pick) {
    DrawBits& drawn = scratch_.bits;
    drawn.clear();
    int64_t end = begin;
    for (; end < limit && hop_.offsets[end] - hop_.offsets[begin] < kEdgesAtATime; ++end)
      if (draws(end)) drawn.add(end, count_of(end));
    if (static_cast<int64_t>(buffer.size()) < drawn.size()) buffer.resize(drawn.size());
    first_pick = buffer.data();
    int64_t* picks = first_pick;
    const uint64_t* bits = drawn.make(hop_.random);
    for (int64_t t = begin; t < end; ++t) {
      const auto* const list = static_cast<const Id*>(lists_[t].indices);
      const int64_t count = count_of(t);
      if (draws(t)) {
        scratch_.picker.pick(bits, lists_[t].degree, count, picks);
        if (order_ == PickOrder::kList) std::sort(picks, picks + count);
        for (int64_t i = 0; i < count; ++i) prefetch_far(list + picks[i]);
        picks += count;
        bits += (count + 1) / 2 * 2;
      } else {
        for (int64_t i = 0; i < count && i < kEdgesAtATime; i += kIdsPerLine)
          prefetch_far(list + i);
      }
    }
    return end;
  }

  void read(int64_t begin, int64_t end, const int64_t* picks) const {
    for (int64_t t = begin; t < end; ++t) {
      const Neighbors& list = lists_[t];
      const int64_t slot = hop_.offsets[t], count = count_of(t);
      if (draws(t)) {
        read(list, slot, count, [&](int64_t i) { return picks[i]; });
        picks += count;
      } else {
        read(list, slot, count, [](int64_t i) { return i; });
      }
    }
  }

  /// Reads the `count` neighbours at pick(i).
  template <typename Pick>
  void read(const Neighbors& list, int64_t slot, int64_t count, const Pick& pick) const {
    const auto* const from = static_cast<const Id*>(list.indices);
    auto* const to = static_cast<Id*>(hop_.sources) + slot;
    for (int64_t i = 0; i < count; ++i) to[i] = from[pick(i)];
    if (hop_.edge_ids == nullptr) return;
    for (int64_t i = 0; i < count; ++i)
      hop_.edge_ids[slot + i] = csc_.edge_id(list.edge_begin + pick(i));
  }

  const CscView& csc_;
  const Hop& hop_;
  const Neighbors* const lists_;
  DrawScratch& scratch_;
  const PickOrder order_;
};

}  // namespace

void count_neighbors_cpu(const CscView& csc, const Hop& hop, int64_t begin, int64_t end,
                         Neighbors* lists) {
  // Most targets of many relations have no neighbours: of these, one word is read from memory.
  for (int64_t first = begin; first < end; first += kTargetsAtATime) {
    const int64_t last = std::min(first + kTargetsAtATime, end);
    for (int64_t t = first; t < last; ++t) {
      if (t + kTargetsAhead < end) {
        const ListWords ahead(csc, hop.targets[t + kTargetsAhead]);
        prefetch_far(ahead.part.indptr + ahead.local);
      }
      const ListWords words(csc, hop.targets[t]);
      const int64_t* const ends = words.part.indptr + words.local;
      const int64_t degree = ends[1] - ends[0];
      lists[t] = {static_cast<const char*>(words.part.indices) + ends[0] * csc.index_bytes, degree,
                  0};
      hop.offsets[t] = hop.edges_of(degree);
      if (degree > 0) prefetch_far(words.part.edge_begin + words.local);
    }
    for (int64_t t = first; t < last; ++t) {
      if (lists[t].degree == 0) continue;
      const ListWords words(csc, hop.targets[t]);
      lists[t].edge_begin = words.part.edge_begin[words.local];
    }
  }
}

void sample_neighbors_cpu(const CscView& csc, const Hop& hop, const Neighbors* lists, int64_t begin,
                          int64_t end, DrawScratch& scratch, PickOrder order) {
  if (hop.index_bytes == 4)
    Groups<int32_t>(csc, hop, lists, scratch, order).run(begin, end);
  else
    Groups<int64_t>(csc, hop, lists, scratch, order).run(begin, end);
}

}  // namespace peergraph
