#include "sampling/weighted_temporal/choose.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/vectors.h"
#include "sampling/neighbor/neighbor.h"
#include "sampling/neighbor/without_replacement.h"
#include "sampling/weighted_temporal/time_order.h"

namespace peergraph {
namespace {

// Targets between a prefetch and the read that it serves.
constexpr int64_t kListsAhead = 4;

/// What one pass over the times of a list counts.
struct TimeSummary {
  int64_t before = 0;    // times before the window
  int64_t admitted = 0;  // times in the window
  bool in_order = true;  // no time is before the one that precedes it
};

TimeSummary look_through(const int64_t* times, int64_t count, const TimeWindow& window) {
  int64_t before = 0, until = 0, descents = 0;
  with_vectors<64>([&](auto) PG_INLINED {
    int64_t early = 0, not_after = 0, falls = 0;
    for (int64_t i = 0; i < count; ++i) not_after += times[i] <= window.last ? 1 : 0;
    for (int64_t i = 1; i < count; ++i) falls += times[i] < times[i - 1] ? 1 : 0;
    if (window.first > INT64_MIN)
      for (int64_t i = 0; i < count; ++i) early += times[i] < window.first ? 1 : 0;
    before = early;
    until = not_after;
    descents = falls;
  });
  return {before, std::max<int64_t>(0, until - before), descents == 0};
}

/// Counts the neighbours to choose from, at most `most`.
int64_t count_admitted(const Candidates& candidates, int64_t most) {
  int64_t admitted = 0;
  for (int64_t i = 0; i < candidates.list.degree && admitted < most; ++i)
    admitted += candidates.admits(i) ? 1 : 0;
  return admitted;
}

struct Ranked {
  uint64_t key;
  int64_t position;
};

/// The order in which neighbours are chosen: by key; equal keys by position, from the end of
/// the list for `last`.
struct Before {
  bool last;

  bool operator()(const Ranked& a, const Ranked& b) const {
    if (a.key != b.key) return a.key < b.key;
    return last ? a.position > b.position : a.position < b.position;
  }
};

/// Keeps the `count` candidates that come first.
class Least {
 public:
  void begin(int64_t count, int64_t degree, bool last) {
    count_ = count;
    // A heap rejects most of a long list with one comparison.
    as_heap_ = kMuchLonger * count <= degree;
    last_ = last;
    kept_.clear();
  }

  void offer(const Ranked& one) {
    const Before order{last_};
    if (!as_heap_ || static_cast<int64_t>(kept_.size()) < count_) {
      kept_.push_back(one);
      if (as_heap_) std::push_heap(kept_.begin(), kept_.end(), order);
    } else if (order(one, kept_.front())) {
      std::pop_heap(kept_.begin(), kept_.end(), order);
      kept_.back() = one;
      std::push_heap(kept_.begin(), kept_.end(), order);
    }
  }

  /// The kept candidates, in the order of the list.
  const std::vector<Ranked>& end() {
    if (count_ < static_cast<int64_t>(kept_.size())) {
      std::nth_element(kept_.begin(), kept_.begin() + count_, kept_.end(), Before{last_});
      kept_.resize(count_);
    }
    std::sort(kept_.begin(), kept_.end(),
              [](const Ranked& a, const Ranked& b) { return a.position < b.position; });
    return kept_;
  }

 private:
  static constexpr int64_t kMuchLonger = 4;

  int64_t count_ = 0;
  bool as_heap_ = false;
  bool last_ = false;
  std::vector<Ranked> kept_;
};

/// Chooses for one target after the other; the vectors are reused.
class Chooser {
 public:
  explicit Chooser(DrawScratch& scratch) : scratch_(scratch) {}

  /// Calls emit(i, pick) for i = 0 .. count-1; count is that of count_choices_cpu.
  /// `times` are those of the list, if the choice depends on times.
  template <typename Emit>
  void run(const Candidates& candidates, const int64_t* times, int64_t fanout, int64_t count,
           const Emit& emit) {
    times_ = times;
    if (count == 0) return;
    if (candidates.choice.replace && fanout >= 0 && candidates.choice.last)
      draw_among_last(candidates, count, emit);
    else if (candidates.choice.replace && fanout >= 0)
      with_replacement(candidates, count, emit);
    else
      without_replacement(candidates, count, emit);
  }

 private:
  template <typename Emit>
  void without_replacement(const Candidates& candidates, int64_t count, const Emit& emit) {
    if (candidates.choice.timed()) {
      const std::vector<Ranked>& chosen = in_order_of_time(candidates, count);
      for (int64_t i = 0; i < count; ++i) emit(i, chosen[i].position);
    } else if (count == candidates.list.degree) {
      for (int64_t i = 0; i < count; ++i) emit(i, i);
    } else {
      const std::vector<Ranked>& chosen = least_of(candidates, count);
      for (int64_t i = 0; i < count; ++i) emit(i, chosen[i].position);
    }
  }

  /// The chosen neighbours, sorted by time; equal times in the order of the list.
  const std::vector<Ranked>& in_order_of_time(const Candidates& candidates, int64_t count) {
    by_time_.clear();
    const auto add = [&](int64_t i) {
      by_time_.push_back({Candidates::key_of_time(times_[i]), i});
    };
    const int64_t admitted = find_admitted(candidates);
    if (count == admitted) {
      for (int64_t i = 0; i < count; ++i) add(admitted_[i]);
    } else if (candidates.choice.draws_admitted(count)) {
      const int64_t* const picks = draw(candidates, admitted, count);
      for (int64_t i = 0; i < count; ++i) add(admitted_[picks[i]]);
    } else {
      least_.begin(count, admitted, candidates.choice.last);
      rank_admitted(candidates, admitted);
      for (const Ranked& one : least_.end()) add(one.position);
    }
    std::sort(by_time_.begin(), by_time_.end(), Before{false});
    return by_time_;
  }

  /// Finds the neighbours that the seed's window admits, in the order of the list; returns how
  /// many.
  int64_t find_admitted(const Candidates& candidates) {
    const int64_t degree = candidates.list.degree;
    if (static_cast<int64_t>(admitted_.size()) < degree) admitted_.resize(2 * degree);
    const TimeWindow window = candidates.window;
    int64_t num_admitted = 0;
    const auto find = [&](const auto& admits) PG_INLINED {
      for (int64_t i = 0; i < degree; ++i) {
        admitted_[num_admitted] = i;
        num_admitted += admits(times_[i]) ? 1 : 0;
      }
    };
    if (window.first == INT64_MIN)
      find([&](int64_t time) { return time <= window.last; });
    else
      find([&](int64_t time) { return window.admits(time); });
    return num_admitted;
  }

  /// Draws `count` out of 0 .. admitted-1, as sample_neighbors_cpu draws.
  const int64_t* draw(const Candidates& candidates, int64_t admitted, int64_t count) {
    scratch_.bits.clear();
    scratch_.bits.add(candidates.position, count);
    picks_.resize(count);
    scratch_.picker.pick(scratch_.bits.make(candidates.random), admitted, count, picks_.data());
    return picks_.data();
  }

  /// As rank(), for the admitted neighbours of a choice by time.
  void rank_admitted(const Candidates& candidates, int64_t admitted) {
    const bool last = candidates.choice.last;
    for (int64_t k = 0; k < admitted; ++k) {
      const int64_t i = admitted_[k];
      least_.offer({last ? Candidates::age_key(times_[i]) : candidates.random_key(i), i});
    }
  }

  /// Draws with replacement among the `count` most recent neighbours.
  template <typename Emit>
  void draw_among_last(const Candidates& candidates, int64_t count, const Emit& emit) {
    const std::vector<Ranked>& recent = least_of(candidates, count);
    for (int64_t i = 0; i < count; ++i)
      emit(i, recent[candidates.pick_below(recent.size(), i)].position);
  }

  /// The neighbours with the least keys, at most `count`, in the order of the list.
  const std::vector<Ranked>& least_of(const Candidates& candidates, int64_t count) {
    least_.begin(count, candidates.list.degree, candidates.choice.last);
    if (candidates.choice.is_only_weighted())
      rank_by_weights(candidates);
    else
      rank(candidates);
    return least_.end();
  }

  void rank(const Candidates& candidates) {
    for (int64_t i = 0; i < candidates.list.degree; ++i) {
      const uint64_t key = candidates.key(i);
      if (key != Candidates::kNoKey) least_.offer({key, i});
    }
  }

  /// As rank(), if each neighbour has a draw of its own: random numbers and logarithms are
  /// computed for the whole list, in loops that compilers vectorise.
  void rank_by_weights(const Candidates& candidates) {
    const int64_t degree = candidates.list.degree;
    scratch_.bits.clear();
    scratch_.bits.add(candidates.position, degree);
    const uint64_t* random = scratch_.bits.make(candidates.random);
    weights_.resize(degree);
    for (int64_t i = 0; i < degree; ++i) weights_[i] = candidates.weight(i);
    keys_.resize(degree);
    exponentials_.resize(degree);
    const double* weights = weights_.data();
    double* exponentials = exponentials_.data();
    uint64_t* keys = keys_.data();
    with_vectors<64>([&](auto) PG_INLINED {
      for (int64_t i = 0; i < degree; ++i) exponentials[i] = exponential(random[i]);
      for (int64_t i = 0; i < degree; ++i)
        keys[i] = Candidates::weighted_key(exponentials[i], weights[i]);
    });
    for (int64_t i = 0; i < degree; ++i)
      least_.offer({weights[i] > 0 ? keys[i] : Candidates::weightless_key(random[i]), i});
  }

  template <typename Emit>
  void with_replacement(const Candidates& candidates, int64_t count, const Emit& emit) {
    const int64_t degree = candidates.list.degree;
    if (!candidates.choice.weighted() && !candidates.choice.timed()) {
      for (int64_t i = 0; i < count; ++i) emit(i, candidates.pick_below(degree, i));
      return;
    }
    if (!candidates.choice.weighted()) {
      const int64_t admitted = find_admitted(candidates);
      for (int64_t i = 0; i < count; ++i) emit(i, admitted_[candidates.pick_below(admitted, i)]);
      return;
    }
    uint64_t heaviest = 0;
    for (int64_t i = 0; i < degree; ++i) heaviest = std::max(heaviest, candidates.weight_bits(i));
    sums_.resize(degree);
    for (int64_t i = 0; i < degree; ++i) sums_[i] = candidates.mass(i, heaviest);
    std::partial_sum(sums_.begin(), sums_.end(), sums_.begin());
    for (int64_t i = 0; i < count; ++i) {
      const auto drawn = static_cast<uint64_t>(candidates.pick_below(sums_.back(), i));
      emit(i, std::upper_bound(sums_.begin(), sums_.end(), drawn) - sums_.begin());
    }
  }

  DrawScratch& scratch_;
  const int64_t* times_ = nullptr;
  std::vector<int64_t> admitted_, picks_;
  std::vector<double> weights_, exponentials_;
  std::vector<uint64_t> keys_;
  Least least_;
  std::vector<Ranked> by_time_;
  std::vector<uint64_t> sums_;
};

}  // namespace

void count_choices_cpu(const CscView& csc, const Choice& choice, const Hop& hop, Neighbors* lists,
                       ListTimes& times, int64_t begin, int64_t end) {
  if (choice.admits_all()) {
    for (int64_t t = begin; t < end; ++t)
      hop.offsets[t] = choice.edges_of(hop.fanout, lists[t].degree);
    return;
  }
  if (!choice.timed()) {
    for (int64_t t = begin; t < end; ++t)
      hop.offsets[t] = choice.edges_of(
          hop.fanout, count_admitted(candidates_of(csc, choice, hop, t, lists[t]),
                                     hop.fanout < 0 ? lists[t].degree : hop.fanout));
    return;
  }
  if (choice.bisects(hop.fanout)) return bisect_lists_cpu(csc, choice, hop, lists, begin, end);
  const TimeReader reader(csc, choice);
  std::vector<int64_t> some;
  int64_t* room = times.room(begin);
  for (int64_t t = begin; t < end; ++t) {
    if (t + kListsAhead < end) reader.prefetch(lists[t + kListsAhead]);
    const Candidates candidates = candidates_of(csc, choice, hop, t, lists[t]);
    const int64_t degree = candidates.list.degree;
    if (room == nullptr) some.resize(degree);
    int64_t* const to = room == nullptr ? some.data() : room;
    const int64_t* const of_list = reader.read(candidates, to);
    const TimeSummary summary = look_through(of_list, degree, candidates.window);
    const int64_t admitted =
        choice.skips_by_weight() ? count_admitted(candidates, degree) : summary.admitted;
    hop.offsets[t] = choice.edges_of(hop.fanout, admitted);
    if (summary.in_order && choice.samples_part(hop.fanout)) {
      const ListPart part = part_to_sample(choice, hop.fanout, summary.before, summary.admitted);
      lists[t] = Hop::part_of(csc, lists[t], part);
      times.set_trimmed(t);
    } else if (room != nullptr) {
      // A copy, so that the choice sees the same times even if the table is written meanwhile.
      if (of_list != room) std::copy_n(of_list, degree, room);
      times.keep(t, room);
      room += degree;
    }
  }
}

void choose_neighbors_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                          const Neighbors* lists, const ListTimes& times, int64_t begin,
                          int64_t end, DrawScratch& scratch) {
  Chooser chooser(scratch);
  const TimeReader reader(csc, choice);
  std::vector<int64_t> some;
  const bool all_trimmed = choice.bisects(hop.fanout);
  const bool replaces = choice.replace && hop.fanout >= 0;
  const auto trimmed = [&](int64_t t) {
    return all_trimmed || (choice.timed() && times.is_trimmed(t));
  };
  for (int64_t t = begin, behind; t < end; t = behind) {
    for (behind = t; !replaces && behind < end && trimmed(behind);) ++behind;
    if (behind > t) {
      sample_neighbors_cpu(csc, hop, lists, t, behind, scratch, PickOrder::kList);
      continue;
    }
    behind = t + 1;
    const Candidates candidates = candidates_of(csc, choice, hop, t, lists[t]);
    const Neighbors& list = candidates.list;
    const int64_t slot = hop.offsets[t];
    const int64_t count = hop.offsets[behind] - slot;
    const auto emit = [&](int64_t i, int64_t pick) {
      store_id(hop.sources, hop.index_bytes, slot + i,
               load_id(list.indices, hop.index_bytes, pick));
      if (hop.edge_ids != nullptr) hop.edge_ids[slot + i] = csc.edge_id(list.edge_begin + pick);
    };
    if (replaces && trimmed(t)) {
      for (int64_t i = 0; i < count; ++i) emit(i, candidates.pick_below(list.degree, i));
      continue;
    }
    const int64_t* of_list = nullptr;
    if (choice.timed() && count > 0) {
      of_list = times.of(t);
      if (of_list == nullptr) {
        some.resize(list.degree);
        of_list = reader.read(candidates, some.data());
      }
    }
    chooser.run(candidates, of_list, hop.fanout, count, emit);
  }
}

}  // namespace peergraph
