// Weighted and temporal choice among the neighbours of one target by a group of threads. It
// needs a fixed amount of shared memory, whatever the degree and the fanout.
#pragma once

#include <cstdint>

#include "common/partition_point.h"
#include "sampling/common/for_each_target.cuh"
#include "sampling/neighbor/without_replacement.cuh"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {

/// The chosen keys: all keys whose bits from `shift` on are below `prefix`, and `need` of the
/// `equal` keys whose bits are equal to it.
struct Threshold {
  uint64_t prefix = 0;
  int shift = 64;
  uint64_t need = 0;
  uint64_t equal = 0;

  __device__ uint64_t top(uint64_t key) const { return shift == 64 ? 0 : key >> shift; }
};

/// Finds the `count` least of `admitted` keys by radix selection, the highest digit first.
template <typename Group, typename KeyAt>
__device__ Threshold find_threshold(const Group& group, const SharedScratch& scratch,
                                    int64_t degree, int64_t count, int64_t admitted,
                                    const KeyAt& key_at) {
  constexpr int kDigitsPerThread = kDigits / Group::kThreads;
  Threshold threshold;
  threshold.need = static_cast<uint64_t>(count);
  threshold.equal = static_cast<uint64_t>(admitted);
  while (threshold.need < threshold.equal && threshold.shift > 0) {
    const int shift = threshold.shift - kDigitBits;
    for (int d = group.thread_rank(); d < kDigits; d += Group::kThreads) scratch.histogram[d] = 0;
    group.sync();
    for (int64_t i = group.thread_rank(); i < degree; i += Group::kThreads) {
      const uint64_t key = key_at(i);
      if (key != Candidates::kNoKey && threshold.top(key) == threshold.prefix)
        atomicAdd(scratch.histogram + ((key >> shift) & (kDigits - 1)), 1u);
    }
    group.sync();
    uint64_t own = 0, total;
    for (int k = 0; k < kDigitsPerThread; ++k)
      own += scratch.histogram[group.thread_rank() * kDigitsPerThread + k];
    uint64_t below = group.exclusive_sum(own, total);
    if (below < threshold.need && threshold.need <= below + own) {
      int digit = group.thread_rank() * kDigitsPerThread;
      while (below + scratch.histogram[digit] < threshold.need) below += scratch.histogram[digit++];
      scratch.found[0] = static_cast<uint64_t>(digit);
      scratch.found[1] = threshold.need - below;
      scratch.found[2] = scratch.histogram[digit];
    }
    group.sync();
    threshold.prefix = (threshold.prefix << kDigitBits) | scratch.found[0];
    threshold.need = scratch.found[1];
    threshold.equal = scratch.found[2];
    threshold.shift = shift;
    group.sync();
  }
  return threshold;
}

/// Calls emit(i, pick) for the `count` neighbours with the least keys.
template <typename Group, typename KeyAt, typename Emit>
__device__ void choose_least(const Group& group, const SharedScratch& scratch, bool last,
                             int64_t degree, int64_t count, int64_t admitted, const KeyAt& key_at,
                             const Emit& emit) {
  const Threshold threshold = find_threshold(group, scratch, degree, count, admitted, key_at);
  uint64_t emitted = 0, equal_before = 0;
  for (int64_t base = 0; base < degree && emitted < static_cast<uint64_t>(count);
       base += Group::kThreads) {
    const int64_t i = base + group.thread_rank();
    const uint64_t key = i < degree ? key_at(i) : Candidates::kNoKey;
    const bool admitted_one = key != Candidates::kNoKey;
    const bool equal = admitted_one && threshold.top(key) == threshold.prefix;
    bool take = equal || (admitted_one && threshold.top(key) < threshold.prefix);
    if (threshold.need < threshold.equal) {  // among equal keys the order of the list decides
      uint64_t in_chunk;
      const uint64_t nth = equal_before + group.exclusive_sum(equal ? 1 : 0, in_chunk);
      if (equal) take = last ? nth >= threshold.equal - threshold.need : nth < threshold.need;
      equal_before += in_chunk;
    }
    uint64_t taken;
    const uint64_t to = emitted + group.exclusive_sum(take ? 1 : 0, taken);
    if (take) emit(static_cast<int64_t>(to), i);
    emitted += taken;
  }
}

/// The slots of a target as temporary memory for its picks, until edges are written there.
struct PickSlots {
  void* slots;
  int32_t bytes;
  int64_t first;
  int64_t capacity;  // static shapes only: may be less than the number of picks

  __device__ int64_t get(int64_t i) const { return load_id(slots, bytes, first + i); }
  __device__ void set(int64_t i, int64_t pick) const {
    if (i < capacity) store_id(slots, bytes, first + i, pick);
  }
};

/// Sorts `count` picks by time; equal times in the order of the list. A bitonic sort in which
/// every comparison moves the smaller item to the front, so that the count need not be a power
/// of two. Times are kept in shared memory as far as they fit.
template <typename Group>
__device__ void sort_by_time(const Group& group, const SharedScratch& scratch,
                             const Candidates& candidates, const PickSlots& picks, int64_t count) {
  const bool kept = count <= scratch.capacity;
  const auto time_at = [&](int64_t i) {
    return kept ? scratch.keys[i] : candidates.time_key(picks.get(i));
  };
  if (kept) {
    for (int64_t i = group.thread_rank(); i < count; i += Group::kThreads)
      scratch.keys[i] = candidates.time_key(picks.get(i));
    group.sync();
  }
  // Lists are often sorted by time, as edges are when they are recorded.
  uint64_t falls = 0;
  for (int64_t i = group.thread_rank(); i + 1 < count; i += Group::kThreads)
    falls |= time_at(i) > time_at(i + 1) ? 1 : 0;
  if (group.reduce_max(falls) == 0) return;
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
      for (int64_t i = group.thread_rank(); i < count; i += Group::kThreads)
        if (const int64_t other = i ^ flips; i < other && other < count) exchange(i, other);
      group.sync();
    }
  }
}

/// Draws `count` of the admitted neighbours, as a uniform sample draws of whole lists; calls
/// emit(i, pick) in the order of the list.
template <typename Group, typename Emit>
__device__ void draw_admitted(const Group& group, const SharedScratch& scratch,
                              const Candidates& candidates, int64_t count, int64_t admitted,
                              const Emit& emit) {
  static_assert(Choice::kMostDraws <= kBlockKeys, "draws are in shared memory");
  const SortedDraws draws{scratch.keys, reinterpret_cast<int*>(scratch.histogram),
                          SortedDraws::bits_for(count)};
  draws.make(group, candidates.random, admitted, count, candidates.position);
  sort_picks(group, draws, admitted, count);
  const uint64_t* picked = scratch.keys;  // places among the admitted neighbours
  const int64_t degree = candidates.list.degree;
  uint64_t before = 0;
  for (int64_t base = 0; base < degree && before <= picked[count - 1]; base += Group::kThreads) {
    const int64_t i = base + group.thread_rank();
    const bool admits = i < degree && candidates.admits(i);
    uint64_t in_chunk;
    const uint64_t place = before + group.exclusive_sum(admits ? 1 : 0, in_chunk);
    before += in_chunk;
    if (!admits) continue;
    const int64_t first =
        partition_point(int64_t{0}, count, [&](int64_t k) { return picked[k] < place; });
    if (first < count && picked[first] == place) emit(first, i);
  }
}

template <typename Group, typename Emit>
__device__ void without_replacement(const Group& group, const SharedScratch& scratch,
                                    const Candidates& candidates, int64_t count, int64_t admitted,
                                    const Emit& emit) {
  const int64_t degree = candidates.list.degree;
  const bool last = candidates.choice.last;
  if (count == admitted) {
    const auto admission = [&](int64_t i) {
      return candidates.admits(i) ? uint64_t{0} : Candidates::kNoKey;
    };
    choose_least(group, scratch, last, degree, count, admitted, admission, emit);
  } else if (candidates.choice.draws_admitted(count)) {
    draw_admitted(group, scratch, candidates, count, admitted, emit);
  } else if (degree <= scratch.capacity) {
    for (int64_t i = group.thread_rank(); i < degree; i += Group::kThreads)
      scratch.keys[i] = candidates.key(i);
    group.sync();
    const auto kept = [&](int64_t i) { return scratch.keys[i]; };
    choose_least(group, scratch, last, degree, count, admitted, kept, emit);
  } else {
    const auto computed = [&](int64_t i) { return candidates.key(i); };
    choose_least(group, scratch, last, degree, count, admitted, computed, emit);
  }
}

/// Draws with replacement among the `count` most recent neighbours. Each of these neighbours
/// searches for the draws that picked it, so that no list of them is needed.
template <typename Group, typename Emit>
__device__ void draw_among_last(const Group& group, const SharedScratch& scratch,
                                const Candidates& candidates, int64_t count, int64_t admitted,
                                const Emit& emit) {
  const int64_t recent = admitted < count ? admitted : count;
  const auto emit_draws = [&](int64_t place, int64_t pick) {
    for (int64_t draw = 0; draw < count; ++draw)
      if (candidates.pick_below(static_cast<uint64_t>(recent), draw) == place) emit(draw, pick);
  };
  without_replacement(group, scratch, candidates, recent, admitted, emit_draws);
}

/// Draws with replacement in proportion to the masses: computes the running sum a chunk at a
/// time, and looks up every draw that falls into the chunk.
template <typename Group, typename Emit>
__device__ void with_replacement(const Group& group, const SharedScratch& scratch,
                                 const Candidates& candidates, int64_t count, const Emit& emit) {
  const int64_t degree = candidates.list.degree;
  uint64_t heaviest = 0, total = 0;
  if (candidates.choice.weighted()) {
    for (int64_t i = group.thread_rank(); i < degree; i += Group::kThreads) {
      const uint64_t bits = candidates.weight_bits(i);
      heaviest = bits > heaviest ? bits : heaviest;
    }
    heaviest = group.reduce_max(heaviest);
  }
  for (int64_t i = group.thread_rank(); i < degree; i += Group::kThreads)
    total += candidates.mass(i, heaviest);
  total = group.reduce_sum(total);
  uint64_t before = 0;
  for (int64_t base = 0; base < degree; base += Group::kThreads) {
    const int64_t i = base + group.thread_rank();
    const uint64_t mass = i < degree ? candidates.mass(i, heaviest) : 0;
    uint64_t in_chunk;
    const uint64_t behind = before + group.exclusive_sum(mass, in_chunk) + mass;
    scratch.keys[group.thread_rank()] = behind;
    group.sync();
    for (int64_t draw = group.thread_rank(); draw < count; draw += Group::kThreads) {
      const auto drawn = static_cast<uint64_t>(candidates.pick_below(total, draw));
      if (drawn < before || drawn >= before + in_chunk) continue;
      // The first sum above the draw.
      emit(draw, base + partition_point(0, static_cast<int>(Group::kThreads) - 1,
                                        [&](int k) { return scratch.keys[k] <= drawn; }));
    }
    group.sync();
    before += in_chunk;
  }
}

}  // namespace peergraph
