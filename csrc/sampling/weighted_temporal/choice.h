// The way a relation chooses among the neighbours of a target, other than uniformly without
// replacement: with replacement, by weights, by times, or by draws that targets share (LABOR).
// All decisions use 64-bit integers that do not depend on the order in which neighbours are
// read, so CPU and GPU agree.
#pragma once

#include <cstdint>

#include "common/exponential.h"
#include "common/host_device.h"
#include "common/ids.h"
#include "memory/table_view.h"
#include "sampling/neighbor/without_replacement.h"
#include "store/csc_view.h"

namespace peergraph {

struct Choice {
  bool replace = false;
  bool last = false;        // take the most recent neighbours; with `replace`, draw among them
  bool edge_time = false;   // `times` are of edges, not of source nodes
  bool per_source = false;  // LABOR: one draw for each source node, shared by all targets
  bool layer_dependency = false;   // LABOR: the same draws in all hops
  bool skip_zero_weights = false;  // edges of weight 0 are never chosen
  int32_t weight_bytes = 0;        // 1, 4 or 8: bool, float or double; 0: no weights
  int32_t time_bytes = 0;          // 4 or 8; 0: no times
  TableView weights;               // rows by the user's edge id
  TableView times;                 // rows by the user's edge id or node id
  bool times_by_internal = false;
  bool in_order = false;  // checked: no list has a time before the one that precedes it
  int64_t window = -1;    // how long before a seed's time neighbours are admitted; -1: always
  IdMapView to_user;      // of the sources
  int64_t relations = 1;  // number of relations of the sampler; each has a stream in every hop

  PG_HD bool weighted() const { return weight_bytes != 0; }
  PG_HD bool timed() const { return time_bytes != 0; }
  PG_HD bool admits_all() const { return !timed() && !skips_by_weight(); }
  PG_HD bool skips_by_weight() const { return skip_zero_weights && weighted(); }
  bool is_only_weighted() const { return weighted() && !timed() && !per_source; }
  bool is_uniform_without_replacement() const {
    return !replace && !weighted() && !timed() && !per_source;
  }

  /// Most draws among neighbours that times admit: those that a GPU keeps in shared memory.
  static constexpr int64_t kMostDraws = 2048;

  /// Whether `fanout` of the admitted neighbours are drawn as uniform samples are drawn from whole
  /// lists. Larger fanouts compare a key of each neighbour.
  PG_HD bool draws_admitted(int64_t fanout) const {
    return timed() && !last && !replace && !weighted() && !per_source && fanout <= kMostDraws;
  }

  /// Whether a list in the order of its times is sampled as its admitted part would be without
  /// times: the other choices depend on places in the whole list.
  PG_HD bool samples_part(int64_t fanout) const {
    return timed() && !weighted() && !per_source && (last || replace || fanout <= kMostDraws);
  }

  /// Whether the admitted part of each list is found by bisection.
  PG_HD bool bisects(int64_t fanout) const { return in_order && samples_part(fanout); }

  /// Number of edges of a target that has `admitted` neighbours to choose from.
  PG_HD int64_t edges_of(int64_t fanout, int64_t admitted) const {
    if (fanout < 0) return admitted;
    if (replace) return admitted > 0 ? fanout : 0;
    return admitted < fanout ? admitted : fanout;
  }

  /// Looks up times of nodes by the internal ids of the sources if the table has that order,
  /// as it usually has. This saves the conversion to user ids.
  void take_internal_ids(const IdMapView& source_to_internal, const IdMapView& source_to_user) {
    to_user = source_to_user;
    if (!timed() || edge_time) return;
    if (source_to_internal.value_bytes != 0 && times.order.values == source_to_internal.values) {
      times.order = {};
      times_by_internal = true;
    }
  }
};

/// A relation as kernels read it.
struct RelationView {
  CscView csc;
  Choice choice;
};

/// The times that a seed admits, both ends included.
struct TimeWindow {
  int64_t first = INT64_MIN;
  int64_t last = INT64_MAX;

  PG_HD bool admits(int64_t time) const { return first <= time && time <= last; }
};

/// The neighbours of one target, with the keys and masses by which they are chosen.
struct Candidates {
  const CscView& csc;
  const Choice& choice;
  RandomStream random;
  int64_t position;  // of the target in the hop's list
  Neighbors list;
  TimeWindow window;  // of the seed

  /// The key of a neighbour that must not be chosen; greater than all other keys.
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  PG_HD int64_t source(int64_t i) const { return load_id(list.indices, csc.index_bytes, i); }

  PG_HD int64_t time(int64_t i) const {
    const int64_t id = choice.edge_time           ? csc.edge_id(list.edge_begin + i)
                       : choice.times_by_internal ? source(i)
                                                  : choice.to_user(source(i));
    return load_id(choice.times.row(choice.times.order(id)), choice.time_bytes, 0);
  }

  /// The time as an unsigned number with the same order.
  PG_HD static uint64_t key_of_time(int64_t time) {
    return static_cast<uint64_t>(time) ^ (uint64_t{1} << 63);
  }

  PG_HD uint64_t time_key(int64_t i) const { return key_of_time(time(i)); }

  /// The key by which the most recent neighbours come first.
  PG_HD static uint64_t age_key(int64_t time) {
    const uint64_t age = ~key_of_time(time);
    return age == kNoKey ? age - 1 : age;
  }

  PG_HD static uint64_t uniform_key(uint64_t random) { return random >> 1; }

  PG_HD bool in_window(int64_t i) const { return !choice.timed() || window.admits(time(i)); }

  PG_HD bool admits(int64_t i) const {
    return in_window(i) && (!choice.skips_by_weight() || weight(i) > 0);
  }

  /// The weight; 0 for a value that is not above 0.
  PG_HD double weight(int64_t i) const {
    const int64_t id = choice.weights.order(csc.edge_id(list.edge_begin + i));
    const char* at = choice.weights.row(id);
    const double w = choice.weight_bytes == 1   ? *reinterpret_cast<const uint8_t*>(at)
                     : choice.weight_bytes == 4 ? *reinterpret_cast<const float*>(at)
                                                : *reinterpret_cast<const double*>(at);
    return w > 0 ? w : 0.0;
  }

  /// Without replacement, the neighbours with the least keys are chosen. With weights, a key
  /// is an exponential divided by the weight (Efraimidis and Spirakis 2006); neighbours of
  /// weight 0 come behind all others. If these are skipped, only as many as the others are chosen.
  PG_HD uint64_t key(int64_t i) const {
    if (choice.timed()) {
      const int64_t when = time(i);
      if (!window.admits(when)) return kNoKey;
      if (choice.last) return age_key(when);
    }
    return random_key(i);
  }

  /// The key of a neighbour that the seed's window admits, unless the most recent are taken.
  PG_HD uint64_t random_key(int64_t i) const {
    const uint64_t bits = random_of(i);
    if (!choice.weighted()) return uniform_key(bits);
    const double w = weight(i);
    return w > 0 ? weighted_key(exponential(bits), w) : weightless_key(bits);
  }

  PG_HD static uint64_t weighted_key(double exponential, double weight) {
    return bits_of(divide_exact(exponential, weight));
  }

  PG_HD static uint64_t weightless_key(uint64_t random) {
    return (uint64_t{1} << 63) | (random >> 2);
  }

  /// With replacement, a neighbour is drawn with a probability in proportion to its mass: 1,
  /// or its weight in fixed point. `heaviest` is the greatest of the weight_bits(); if it is
  /// 0, all neighbours have the mass 1.
  PG_HD uint64_t weight_bits(int64_t i) const { return in_window(i) ? bits_of(weight(i)) : 0; }

  PG_HD uint64_t mass(int64_t i, uint64_t heaviest) const {
    if (!in_window(i)) return 0;
    if (heaviest == 0) return 1;
    const uint64_t bits = bits_of(weight(i));
    return bits == 0 ? 0 : fixed_point(bits, heaviest);
  }

  PG_HD int64_t pick_below(uint64_t total, int64_t draw) const {
    return static_cast<int64_t>(random_below(total, random.key(), random.stream,
                                             static_cast<uint64_t>(position),
                                             static_cast<uint32_t>(draw)));
  }

 private:
  PG_HD uint64_t random_of(int64_t i) const {
    if (choice.per_source) {
      const auto node = static_cast<uint64_t>(choice.to_user(source(i)));
      const uint64_t stream =
          choice.layer_dependency
              ? 0
              : random.stream - random.stream % static_cast<uint64_t>(choice.relations);
      return draw_bits(draw_block(random.key(), stream, node, 0), 0);
    }
    const auto draw = static_cast<uint32_t>(i);
    return draw_bits(draw_block(random.key(), random.stream, position, draw), draw);
  }

  /// The weight in fixed point, scaled so that the sum of all masses is below 2^62; at least
  /// 1.
  PG_HD uint64_t fixed_point(uint64_t bits, uint64_t heaviest) const {
    int digits = 62;
    for (uint64_t left = static_cast<uint64_t>(list.degree); left != 0; left >>= 1) --digits;
    const int shift = digits - 53 - (exponent(heaviest) - exponent(bits));
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    const uint64_t significand = fraction | ((bits >> 52) != 0 ? uint64_t{1} << 52 : 0);
    const uint64_t fixed = shift >= 0    ? significand << shift
                           : shift > -64 ? significand >> -shift
                                         : 0;
    return fixed == 0 ? 1 : fixed;
  }

  PG_HD static int exponent(uint64_t bits) {
    const int biased = static_cast<int>(bits >> 52);
    return biased == 0 ? 1 : biased;
  }
};

}  // namespace peergraph
