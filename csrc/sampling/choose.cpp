#include "sampling/choose.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace peergraph {
namespace {

int64_t count_admitted(const Candidates& candidates) {
  if (!candidates.choice.timed()) return candidates.list.degree;
  int64_t admitted = 0;
  for (int64_t i = 0; i < candidates.list.degree; ++i) admitted += candidates.admits(i) ? 1 : 0;
  return admitted;
}

/// Chooses for one target after the other; the vectors are reused.
class Chooser {
 public:
  /// Calls emit(i, pick) for i = 0 .. count-1; count is that of count_choices_cpu.
  template <typename Emit>
  void run(const Candidates& candidates, int64_t fanout, int64_t count, const Emit& emit) {
    if (count == 0) return;
    if (candidates.choice.replace && fanout >= 0)
      with_replacement(candidates, count, emit);
    else
      without_replacement(candidates, count, emit);
  }

 private:
  struct Ranked {
    uint64_t key;
    int64_t position;
  };

  template <typename Emit>
  void without_replacement(const Candidates& candidates, int64_t count, const Emit& emit) {
    if (count == candidates.list.degree) {
      for (int64_t i = 0; i < count; ++i) emit(i, i);
      return;
    }
    ranked_.clear();
    for (int64_t i = 0; i < candidates.list.degree; ++i) {
      const uint64_t key = candidates.key(i);
      if (key != Candidates::kNoKey) ranked_.push_back({key, i});
    }
    if (count < static_cast<int64_t>(ranked_.size())) {
      const bool last = candidates.choice.last;
      std::nth_element(ranked_.begin(), ranked_.begin() + count, ranked_.end(),
                       [last](const Ranked& a, const Ranked& b) {
                         if (a.key != b.key) return a.key < b.key;
                         return last ? a.position > b.position : a.position < b.position;
                       });
      ranked_.resize(count);
      std::sort(ranked_.begin(), ranked_.end(),
                [](const Ranked& a, const Ranked& b) { return a.position < b.position; });
    }
    for (int64_t i = 0; i < count; ++i) emit(i, ranked_[i].position);
  }

  template <typename Emit>
  void with_replacement(const Candidates& candidates, int64_t count, const Emit& emit) {
    const int64_t degree = candidates.list.degree;
    if (!candidates.choice.weighted() && !candidates.choice.timed()) {
      for (int64_t i = 0; i < count; ++i) emit(i, candidates.pick_below(degree, i));
      return;
    }
    uint64_t heaviest = 0;
    if (candidates.choice.weighted())
      for (int64_t i = 0; i < degree; ++i) heaviest = std::max(heaviest, candidates.weight_bits(i));
    sums_.resize(degree);
    for (int64_t i = 0; i < degree; ++i) sums_[i] = candidates.mass(i, heaviest);
    std::partial_sum(sums_.begin(), sums_.end(), sums_.begin());
    for (int64_t i = 0; i < count; ++i) {
      const auto drawn = static_cast<uint64_t>(candidates.pick_below(sums_.back(), i));
      emit(i, std::upper_bound(sums_.begin(), sums_.end(), drawn) - sums_.begin());
    }
  }

  std::vector<Ranked> ranked_;
  std::vector<uint64_t> sums_;
};

}  // namespace

void count_choices_cpu(const CscView& csc, const Choice& choice, const Hop& hop, int64_t begin,
                       int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    hop.offsets[t] =
        choice.edges_of(hop.fanout, count_admitted(candidates_of(csc, choice, hop, t)));
}

void choose_neighbors_cpu(const CscView& csc, const Choice& choice, const Hop& hop, int64_t begin,
                          int64_t end) {
  Chooser chooser;
  for (int64_t t = begin; t < end; ++t) {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const Neighbors& list = candidates.list;
    const int64_t slot = hop.offsets[t];
    chooser.run(candidates, hop.fanout, hop.offsets[t + 1] - slot, [&](int64_t i, int64_t pick) {
      store_id(hop.sources, hop.index_bytes, slot + i,
               load_id(list.indices, hop.index_bytes, pick));
      if (hop.edge_ids != nullptr) hop.edge_ids[slot + i] = csc.edge_id(list.edge_begin + pick);
    });
  }
}

}  // namespace peergraph
