#include "sampling/neighbor.h"

#include <algorithm>
#include <vector>

namespace peergraph {
namespace {

constexpr int64_t kTargetsAhead = 16;
constexpr int64_t kEdgesAhead = 512;

/// Brings what CscView::neighbors will read.
void prefetch_list(const CscView& csc, int64_t row) {
  const Location at = csc.locate(row);
  const CscPart& part = csc.part(at);
  __builtin_prefetch(part.indptr + at.local);
  __builtin_prefetch(part.edge_begin + at.local);
}

/// The picks of some targets. First all are drawn and their memory is asked for, then it is read:
/// a core waits for many lists at a time.
class Group {
 public:
  Group(const CscView& csc, const Hop& hop, const Neighbors* lists)
      : csc_(csc), hop_(hop), lists_(lists) {}

  /// Draws for as many targets as one should ask for at a time; returns the one behind them.
  int64_t draw(int64_t begin, int64_t end) {
    picks_.clear();
    begin_ = end_ = begin;
    for (; end_ < end && end_ - begin_ < kTargetsAhead && size() < kEdgesAhead; ++end_) {
      const Neighbors& list = lists_[end_];
      const int64_t count = count_of(end_);
      if (count == list.degree)
        ask_for(list, 0, count);
      else
        shuffle_.run(hop_.source, list.degree, end_, count, [&](int64_t, int64_t pick) {
          ask_for(list, pick, pick + 1);
          picks_.push_back(pick);
        });
    }
    return end_;
  }

  void read() const {
    const int64_t* pick = picks_.data();
    for (int64_t t = begin_; t < end_; ++t) {
      const int64_t count = count_of(t);
      const bool all = count == lists_[t].degree;
      for (int64_t i = 0; i < count; ++i) read(lists_[t], hop_.offsets[t] + i, all ? i : *pick++);
    }
  }

 private:
  int64_t size() const { return static_cast<int64_t>(picks_.size()); }

  int64_t count_of(int64_t target) const { return hop_.offsets[target + 1] - hop_.offsets[target]; }

  void ask_for(const Neighbors& list, int64_t begin, int64_t end) const {
    // Of long runs the first line: the hardware follows them.
    __builtin_prefetch(static_cast<const char*>(list.indices) + begin * hop_.index_bytes);
    if (hop_.edge_ids == nullptr || csc_.edge_ids.map.rows == 0) return;
    for (int64_t i = begin; i < std::min(end, begin + kTargetsAhead); ++i)
      __builtin_prefetch(csc_.edge_ids.row(list.edge_begin + i));
  }

  void read(const Neighbors& list, int64_t slot, int64_t from) const {
    store_id(hop_.sources, hop_.index_bytes, slot, load_id(list.indices, hop_.index_bytes, from));
    if (hop_.edge_ids != nullptr) hop_.edge_ids[slot] = csc_.edge_id(list.edge_begin + from);
  }

  const CscView& csc_;
  const Hop& hop_;
  const Neighbors* const lists_;
  VirtualShuffle shuffle_;
  std::vector<int64_t> picks_;
  int64_t begin_ = 0, end_ = 0;
};

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
  Group group(csc, hop, lists);
  while (begin < end) {
    begin = group.draw(begin, end);
    group.read();
  }
}

}  // namespace peergraph
