#include "sampling/weighted_temporal/choose.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/vectors.h"
#include "sampling/neighbor/without_replacement.h"

namespace peergraph {
namespace {

int64_t count_not_after(const int64_t* times, int64_t count, int64_t latest) {
  int64_t admitted = 0;
  with_vectors<64>([&](auto) PG_INLINED {
    for (int64_t i = 0; i < count; ++i) admitted += times[i] <= latest ? 1 : 0;
  });
  return admitted;
}

/// Whether no time is before the one that precedes it.
bool is_in_order(const int64_t* times, int64_t count) {
  int64_t descents = 0;
  with_vectors<64>([&](auto) PG_INLINED {
    for (int64_t i = 1; i < count; ++i) descents += times[i] < times[i - 1] ? 1 : 0;
  });
  return descents == 0;
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

  /// The neighbours with the least keys, sorted by time; equal times in the order of the
  /// list.
  const std::vector<Ranked>& in_order_of_time(const Candidates& candidates, int64_t count) {
    by_time_.clear();
    const auto add = [&](int64_t i) {
      by_time_.push_back({Candidates::key_of_time(times_[i]), i});
    };
    // Lists are often sorted by time, as edges are when they are recorded.
    const bool in_order = is_in_order(times_, candidates.list.degree);
    const int64_t admitted = in_order ? take_prefix(candidates) : find_admitted(candidates);
    if (count == admitted) {
      for (int64_t i = 0; i < count; ++i) add(positions_[i]);
    } else if (candidates.choice.last && in_order) {
      for (int64_t i = admitted - count; i < admitted; ++i) add(i);
    } else {
      least_.begin(count, admitted, candidates.choice.last);
      rank_admitted(candidates, admitted, count);
      for (const Ranked& one : least_.end()) add(one.position);
    }
    if (!in_order) std::sort(by_time_.begin(), by_time_.end(), Before{false});
    return by_time_;
  }

  /// Finds the neighbours that are not later than the seed in a list in order of time; returns how
  /// many: they are the first ones.
  int64_t take_prefix(const Candidates& candidates) {
    const int64_t degree = candidates.list.degree;
    if (static_cast<int64_t>(first_.size()) < degree) {
      first_.resize(2 * degree);
      std::iota(first_.begin(), first_.end(), int64_t{0});
    }
    positions_ = first_.data();
    return std::upper_bound(times_, times_ + degree, candidates.latest) - times_;
  }

  /// As take_prefix(), in a list in any order.
  int64_t find_admitted(const Candidates& candidates) {
    const int64_t degree = candidates.list.degree;
    if (static_cast<int64_t>(admitted_.size()) < degree) admitted_.resize(2 * degree);
    int64_t found = 0;
    for (int64_t i = 0; i < degree; ++i) {
      admitted_[found] = i;
      found += times_[i] <= candidates.latest ? 1 : 0;
    }
    positions_ = admitted_.data();
    return found;
  }

  /// As rank(), for the admitted neighbours of a choice by time.
  void rank_admitted(const Candidates& candidates, int64_t admitted, int64_t count) {
    const Choice& choice = candidates.choice;
    if (choice.last) {
      for (int64_t i = 0; i < admitted; ++i)
        least_.offer({Candidates::age_key(times_[positions_[i]]), positions_[i]});
    } else if (choice.weighted() || choice.per_source) {
      for (int64_t i = 0; i < admitted; ++i)
        least_.offer({candidates.random_key(positions_[i]), positions_[i]});
    } else {
      // Vectorised, for the list up to the last admitted neighbour.
      bits_.clear();
      bits_.add(candidates.position, positions_[admitted - 1] + 1);
      rank_uniform(bits_.make(candidates.random), admitted, count);
    }
  }

  /// Offers admitted neighbours by uniform keys. Of a long list only those below a limit, which
  /// almost always has more than `count` keys below it.
  void rank_uniform(const uint64_t* random, int64_t admitted, int64_t count) {
    const int64_t wanted = 2 * count + 16;
    if (2 * wanted <= admitted) {
      const uint64_t limit = Candidates::kEndOfUniformKeys / admitted * wanted;
      small_.resize(admitted);
      int64_t found = 0;
      for (int64_t i = 0; i < admitted; ++i) {
        small_[found] = positions_[i];
        found += Candidates::uniform_key(random[positions_[i]]) < limit ? 1 : 0;
      }
      if (found >= count) {
        for (int64_t i = 0; i < found; ++i)
          least_.offer({Candidates::uniform_key(random[small_[i]]), small_[i]});
        return;
      }
    }
    for (int64_t i = 0; i < admitted; ++i)
      least_.offer({Candidates::uniform_key(random[positions_[i]]), positions_[i]});
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
    bits_.clear();
    bits_.add(candidates.position, degree);
    const uint64_t* random = bits_.make(candidates.random);
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

  const int64_t* times_ = nullptr;
  // The admitted neighbours, in the order of the list: all of the first ones, or any.
  const int64_t* positions_ = nullptr;
  std::vector<int64_t> first_, admitted_, small_;
  DrawBits bits_;
  std::vector<double> weights_, exponentials_;
  std::vector<uint64_t> keys_;
  Least least_;
  std::vector<Ranked> by_time_;
  std::vector<uint64_t> sums_;
};

/// Reads the times of a list to `to`, or to `some` if that is null.
int64_t* read_times(const TimeReader& reader, const Candidates& candidates, int64_t* to,
                    std::vector<int64_t>& some) {
  if (to == nullptr) {
    some.resize(candidates.list.degree);
    to = some.data();
  }
  reader.read(candidates, to);
  return to;
}

}  // namespace

void count_choices_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                       const ListTimes& times, int64_t begin, int64_t end) {
  const TimeReader reader(csc, choice);
  std::vector<int64_t> some;
  for (int64_t t = begin; t < end; ++t) {
    if (!choice.timed()) {
      hop.offsets[t] = choice.edges_of(hop.fanout, hop.degree(csc, t));
      continue;
    }
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const int64_t degree = candidates.list.degree;
    int64_t* const of_list = read_times(reader, candidates, times.of(t), some);
    hop.offsets[t] =
        choice.edges_of(hop.fanout, count_not_after(of_list, degree, candidates.latest));
  }
}

void choose_neighbors_cpu(const CscView& csc, const Choice& choice, const Hop& hop,
                          const ListTimes& times, int64_t begin, int64_t end) {
  Chooser chooser;
  const TimeReader reader(csc, choice);
  std::vector<int64_t> some;
  for (int64_t t = begin; t < end; ++t) {
    const Candidates candidates = candidates_of(csc, choice, hop, t);
    const Neighbors& list = candidates.list;
    const int64_t slot = hop.offsets[t];
    const int64_t count = hop.offsets[t + 1] - slot;
    const int64_t* of_list = nullptr;
    if (choice.timed() && count > 0) {
      of_list = times.of(t);
      if (of_list == nullptr) of_list = read_times(reader, candidates, nullptr, some);
    }
    chooser.run(candidates, of_list, hop.fanout, count, [&](int64_t i, int64_t pick) {
      store_id(hop.sources, hop.index_bytes, slot + i,
               load_id(list.indices, hop.index_bytes, pick));
      if (hop.edge_ids != nullptr) hop.edge_ids[slot + i] = csc.edge_id(list.edge_begin + pick);
    });
  }
}

}  // namespace peergraph
