// Drawing without replacement by a group of threads: WholeGraph's Algorithm 1, sequential
// swap-with-last, computed in parallel.
//
// With N = degree, M = count and r[i] the i-th draw: draw i gets r[i] unless an earlier draw had
// the same r; then it gets what the latest such draw j moved there, the element that was at N - 1 -
// j at that time. chain[j] is the latest draw k with r[k] = N - 1 - j (what was there had been
// moved by k from N - 1 - k), or j if there is none; chains are followed by path doubling.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/philox.h"
#include "sampling/common/thread_group.cuh"

namespace peergraph {

/// The draws of one target, sorted by the numbers that they drew, in shared or global memory.
struct SortedDraws {
  uint64_t* keys = nullptr;  // [2^bits] the number, then the index of the draw
  int* chain = nullptr;      // [2^bits]
  int bits = 0;              // of the index of a draw: 2^bits is at least the number of draws

  PG_HD static int bits_for(int64_t count) {
    int bits = 1;
    while ((int64_t{1} << bits) < count) ++bits;
    return bits;
  }

  __device__ int64_t capacity() const { return int64_t{1} << bits; }
  __device__ int64_t number(int64_t k) const { return static_cast<int64_t>(keys[k] >> bits); }
  __device__ int64_t draw(int64_t k) const {
    return static_cast<int64_t>(keys[k] & static_cast<uint64_t>(capacity() - 1));
  }

  /// Makes `count` draws, with all threads of the group. Needs count < degree.
  template <typename Group>
  __device__ void make(const Group& group, const RandomStream& random, int64_t degree,
                       int64_t count, int64_t position) const {
    for (int64_t i = group.thread_rank(); i < capacity(); i += group.num_threads()) {
      keys[i] = i < count ? (static_cast<uint64_t>(random.draw(degree, position, i)) << bits) | i
                          : ~uint64_t{0};
      chain[i] = static_cast<int>(i);
    }
    sort_keys(group, keys, capacity());
    for (int64_t k = group.thread_rank(); k < count; k += group.num_threads()) {
      const int64_t r = number(k);
      const bool latest = k == count - 1 || number(k + 1) != r;
      if (latest && r >= degree - count) chain[degree - 1 - r] = static_cast<int>(draw(k));
    }
    group.sync();
    // Path doubling in place, as many links at a time as there are threads. A link that is
    // doubled already only takes the links to it further.
    for (int64_t reach = 1; reach < count; reach *= 2) {
      for (int64_t begin = 0; begin < count; begin += group.num_threads()) {
        const int64_t i = begin + group.thread_rank();
        const int further = i < count ? chain[chain[i]] : 0;
        group.sync();
        if (i < count) chain[i] = further;
        group.sync();
      }
    }
  }

  /// The element that draw(k) picked.
  __device__ int64_t pick(int64_t k, int64_t degree) const {
    const int64_t r = number(k);
    const bool again = k > 0 && number(k - 1) == r;
    return again ? degree - 1 - chain[draw(k - 1)] : r;
  }
};

/// Replaces the draws by their `count` picks in ascending order, with all threads of the group.
template <typename Group>
__device__ void sort_picks(const Group& group, const SortedDraws& draws, int64_t degree,
                           int64_t count) {
  // From the end, as a pick reads the key before its own.
  const int64_t threads = group.num_threads();
  for (int64_t begin = (count - 1) / threads * threads; begin >= 0; begin -= threads) {
    const int64_t k = begin + group.thread_rank();
    const int64_t pick = k < count ? draws.pick(k, degree) : 0;
    group.sync();
    if (k < count) draws.keys[k] = static_cast<uint64_t>(pick);
  }
  sort_keys(group, draws.keys, draws.capacity());
}

}  // namespace peergraph
