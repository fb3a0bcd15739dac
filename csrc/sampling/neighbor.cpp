#include "sampling/neighbor.h"

#include <vector>

#include "sampling/draws_cpu.h"

namespace peergraph {
namespace {

constexpr int64_t kTargetsAhead = 16;
constexpr int64_t kEdgesAtATime = 512;

/// Brings what CscView::neighbors will read.
void prefetch_list(const CscView& csc, int64_t row) {
  const Location at = csc.locate(row);
  const CscPart& part = csc.part(at);
  __builtin_prefetch(part.indptr + at.local);
  __builtin_prefetch(part.edge_begin + at.local);
}

/// The edges of a few targets at a time: first all random numbers, then all picks, then all reads,
/// so that each is a loop of its own and a core waits for many lists at once.
template <typename Id>
class Group {
 public:
  Group(const CscView& csc, const Hop& hop, const Neighbors* lists)
      : csc_(csc), hop_(hop), lists_(lists) {}

  /// Does as many targets as fit into the core's cache; returns the one behind them.
  int64_t run(int64_t begin, int64_t end) {
    begin_ = end_ = begin;
    const int64_t first_slot = hop_.offsets[begin];
    bits_.clear();
    for (; end_ < end && hop_.offsets[end_] - first_slot < kEdgesAtATime; ++end_)
      if (draws(end_)) bits_.add(end_, count_of(end_));
    pick();
    read();
    return end_;
  }

 private:
  int64_t count_of(int64_t target) const { return hop_.offsets[target + 1] - hop_.offsets[target]; }

  bool draws(int64_t target) const { return count_of(target) < lists_[target].degree; }

  void pick() {
    picks_.resize(bits_.size());
    const uint64_t* bits = bits_.make(hop_.source);
    int64_t* picks = picks_.data();
    for (int64_t t = begin_; t < end_; ++t) {
      if (!draws(t)) continue;
      const int64_t count = count_of(t);
      picker_.pick(bits, lists_[t].degree, count, picks);
      for (int64_t i = 0; i < count; ++i)
        __builtin_prefetch(static_cast<const Id*>(lists_[t].indices) + picks[i]);
      picks += count;
      bits += (count + 1) / 2 * 2;
    }
  }

  void read() const {
    const int64_t* picks = picks_.data();
    for (int64_t t = begin_; t < end_; ++t) {
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
  DrawBits bits_;
  Picker picker_;
  std::vector<int64_t> picks_;
  int64_t begin_ = 0, end_ = 0;
};

template <typename Id>
void sample_with(const CscView& csc, const Hop& hop, const Neighbors* lists, int64_t begin,
                 int64_t end) {
  Group<Id> group(csc, hop, lists);
  while (begin < end) begin = group.run(begin, end);
}

}  // namespace

void count_neighbors_cpu(const CscView& csc, const Hop& hop, int64_t begin, int64_t end,
                         Neighbors* lists) {
  for (int64_t t = begin; t < end; ++t) {
    if (t + kTargetsAhead < end) prefetch_list(csc, hop.targets[t + kTargetsAhead]);
    lists[t] = csc.neighbors(hop.targets[t]);
    hop.offsets[t] = hop.edges_of(lists[t].degree);
  }
}

void sample_neighbors_cpu(const CscView& csc, const Hop& hop, const Neighbors* lists, int64_t begin,
                          int64_t end) {
  const auto sample = hop.index_bytes == 4 ? sample_with<int32_t> : sample_with<int64_t>;
  sample(csc, hop, lists, begin, end);
}

}  // namespace peergraph
