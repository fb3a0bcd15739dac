// Choosing among the neighbours of one target by a team of threads, with nothing but a fixed amount
// of shared memory, whatever the degree and the fanout.
#pragma once

#include <cstdint>

#include "sampling/common/for_each_target.cuh"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {

/// Which keys are chosen: those below `prefix` in the bits from `shift` on, and of those equal to
/// it `need` of `equal`.
struct Threshold {
  uint64_t prefix = 0;
  int shift = 64;
  uint64_t need = 0;
  uint64_t equal = 0;

  __device__ uint64_t top(uint64_t key) const { return shift == 64 ? 0 : key >> shift; }
};

/// Radix selection, the highest digit first, of the `count` least of `admitted` keys.
template <typename Team, typename KeyAt>
__device__ Threshold find_threshold(const Team& team, const TeamScratch& scratch, int64_t degree,
                                    int64_t count, int64_t admitted, const KeyAt& key_at) {
  constexpr int kOwnDigits = kDigits / Team::kThreads;
  Threshold at;
  at.need = static_cast<uint64_t>(count);
  at.equal = static_cast<uint64_t>(admitted);
  while (at.need < at.equal && at.shift > 0) {
    const int shift = at.shift - kDigitBits;
    for (int d = team.rank(); d < kDigits; d += Team::kThreads) scratch.histogram[d] = 0;
    team.sync();
    for (int64_t i = team.rank(); i < degree; i += Team::kThreads) {
      const uint64_t key = key_at(i);
      if (key != Candidates::kNoKey && at.top(key) == at.prefix)
        atomicAdd(scratch.histogram + ((key >> shift) & (kDigits - 1)), 1u);
    }
    team.sync();
    uint64_t own = 0, total;
    for (int k = 0; k < kOwnDigits; ++k) own += scratch.histogram[team.rank() * kOwnDigits + k];
    uint64_t below = team.exclusive_sum(own, total);
    if (below < at.need && at.need <= below + own) {
      int digit = team.rank() * kOwnDigits;
      while (below + scratch.histogram[digit] < at.need) below += scratch.histogram[digit++];
      scratch.found[0] = static_cast<uint64_t>(digit);
      scratch.found[1] = at.need - below;
      scratch.found[2] = scratch.histogram[digit];
    }
    team.sync();
    at.prefix = (at.prefix << kDigitBits) | scratch.found[0];
    at.need = scratch.found[1];
    at.equal = scratch.found[2];
    at.shift = shift;
    team.sync();
  }
  return at;
}

/// Calls emit(i, pick) for the `count` neighbours with the least keys.
template <typename Team, typename KeyAt, typename Emit>
__device__ void choose_least(const Team& team, const TeamScratch& scratch, bool last,
                             int64_t degree, int64_t count, int64_t admitted, const KeyAt& key_at,
                             const Emit& emit) {
  const Threshold at = find_threshold(team, scratch, degree, count, admitted, key_at);
  uint64_t emitted = 0, equal_before = 0;
  for (int64_t base = 0; base < degree && emitted < static_cast<uint64_t>(count);
       base += Team::kThreads) {
    const int64_t i = base + team.rank();
    const uint64_t key = i < degree ? key_at(i) : Candidates::kNoKey;
    const bool admitted_one = key != Candidates::kNoKey;
    const bool equal = admitted_one && at.top(key) == at.prefix;
    bool take = equal || (admitted_one && at.top(key) < at.prefix);
    if (at.need < at.equal) {  // keys that are the same: the order of the list decides
      uint64_t in_chunk;
      const uint64_t nth = equal_before + team.exclusive_sum(equal ? 1 : 0, in_chunk);
      if (equal) take = last ? nth >= at.equal - at.need : nth < at.need;
      equal_before += in_chunk;
    }
    uint64_t taken;
    const uint64_t to = emitted + team.exclusive_sum(take ? 1 : 0, taken);
    if (take) emit(static_cast<int64_t>(to), i);
    emitted += taken;
  }
}

/// The slots of a target, which hold the picks until edges are written there.
struct PickSlots {
  void* slots;
  int32_t bytes;
  int64_t first;
  int64_t room;  // may be less than there are picks, in samples of a fixed shape

  __device__ int64_t get(int64_t i) const { return load_id(slots, bytes, first + i); }
  __device__ void set(int64_t i, int64_t pick) const {
    if (i < room) store_id(slots, bytes, first + i, pick);
  }
};

/// Puts `count` picks in the order of their times, of equal ones in the order of the list: bitonic
/// sorting, in which every comparison moves what is less to the front, so that the count need not
/// be a power of two. Times are kept in shared memory as far as there is room.
template <typename Team>
__device__ void sort_by_time(const Team& team, const TeamScratch& scratch,
                             const Candidates& candidates, const PickSlots& picks, int64_t count) {
  const bool kept = count <= scratch.capacity;
  const auto time_at = [&](int64_t i) {
    return kept ? scratch.keys[i] : candidates.time_key(picks.get(i));
  };
  if (kept) {
    for (int64_t i = team.rank(); i < count; i += Team::kThreads)
      scratch.keys[i] = candidates.time_key(picks.get(i));
    team.sync();
  }
  // Lists often are in the order of their times, as edges are when they are recorded.
  uint64_t falls = 0;
  for (int64_t i = team.rank(); i + 1 < count; i += Team::kThreads)
    falls |= time_at(i) > time_at(i + 1) ? 1 : 0;
  if (team.max(falls) == 0) return;
  const auto exchange = [&](int64_t low, int64_t high) {
    const uint64_t early = time_at(low), late = time_at(high);
    const int64_t pick = picks.get(low), other = picks.get(high);
    if (early < late || (early == late && pick < other)) return;
    picks.set(low, other);
    picks.set(high, pick);
    if (!kept) return;
    scratch.keys[low] = late;
    scratch.keys[high] = early;
  };
  for (int64_t width = 2; width < 2 * count; width *= 2) {
    for (int64_t flips = width - 1, step = width / 2; step > 0; step /= 2, flips = step) {
      for (int64_t i = team.rank(); i < count; i += Team::kThreads)
        if (const int64_t other = i ^ flips; i < other && other < count) exchange(i, other);
      team.sync();
    }
  }
}

template <typename Team, typename Emit>
__device__ void without_replacement(const Team& team, const TeamScratch& scratch,
                                    const Candidates& candidates, int64_t count, int64_t admitted,
                                    const Emit& emit) {
  const int64_t degree = candidates.list.degree;
  const bool last = candidates.choice.last;
  if (count == admitted) {
    const auto admission = [&](int64_t i) {
      return candidates.admits(i) ? uint64_t{0} : Candidates::kNoKey;
    };
    choose_least(team, scratch, last, degree, count, admitted, admission, emit);
  } else if (degree <= scratch.capacity) {
    for (int64_t i = team.rank(); i < degree; i += Team::kThreads)
      scratch.keys[i] = candidates.key(i);
    team.sync();
    const auto kept = [&](int64_t i) { return scratch.keys[i]; };
    choose_least(team, scratch, last, degree, count, admitted, kept, emit);
  } else {
    const auto computed = [&](int64_t i) { return candidates.key(i); };
    choose_least(team, scratch, last, degree, count, admitted, computed, emit);
  }
}

/// Draws with replacement among the `count` most recent neighbours. Each of these looks for the
/// draws that fall on it, so that none has to be kept.
template <typename Team, typename Emit>
__device__ void draw_among_last(const Team& team, const TeamScratch& scratch,
                                const Candidates& candidates, int64_t count, int64_t admitted,
                                const Emit& emit) {
  const int64_t recent = admitted < count ? admitted : count;
  const auto emit_draws = [&](int64_t place, int64_t pick) {
    for (int64_t draw = 0; draw < count; ++draw)
      if (candidates.pick_below(static_cast<uint64_t>(recent), draw) == place) emit(draw, pick);
  };
  without_replacement(team, scratch, candidates, recent, admitted, emit_draws);
}

/// Draws by the running sum of the masses: a chunk of it at a time, in which every draw that falls
/// into the chunk is looked up.
template <typename Team, typename Emit>
__device__ void with_replacement(const Team& team, const TeamScratch& scratch,
                                 const Candidates& candidates, int64_t count, const Emit& emit) {
  const int64_t degree = candidates.list.degree;
  uint64_t heaviest = 0, total = 0;
  if (candidates.choice.weighted()) {
    for (int64_t i = team.rank(); i < degree; i += Team::kThreads) {
      const uint64_t bits = candidates.weight_bits(i);
      heaviest = bits > heaviest ? bits : heaviest;
    }
    heaviest = team.max(heaviest);
  }
  for (int64_t i = team.rank(); i < degree; i += Team::kThreads)
    total += candidates.mass(i, heaviest);
  total = team.sum(total);
  uint64_t before = 0;
  for (int64_t base = 0; base < degree; base += Team::kThreads) {
    const int64_t i = base + team.rank();
    const uint64_t mass = i < degree ? candidates.mass(i, heaviest) : 0;
    uint64_t in_chunk;
    const uint64_t behind = before + team.exclusive_sum(mass, in_chunk) + mass;
    scratch.keys[team.rank()] = behind;
    team.sync();
    for (int64_t draw = team.rank(); draw < count; draw += Team::kThreads) {
      const auto drawn = static_cast<uint64_t>(candidates.pick_below(total, draw));
      if (drawn < before || drawn >= before + in_chunk) continue;
      int first = 0, end = Team::kThreads - 1;  // the first sum above what was drawn
      while (first < end) {
        const int middle = (first + end) / 2;
        if (scratch.keys[middle] > drawn)
          end = middle;
        else
          first = middle + 1;
      }
      emit(draw, base + first);
    }
    team.sync();
    before += in_chunk;
  }
}

}  // namespace peergraph
