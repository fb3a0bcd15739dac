// The digest of a piece of memory, the same on the CPU and the GPU: two levels of sums, so that
// each thread of a GPU reads a part of the piece on its own.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.h"
#include "memory/content_digest.h"

namespace peergraph {

constexpr int kDigestThreads = 256;
constexpr int kVectorBytes = 16;  // that are read at a time
constexpr int kVectorWords = kVectorBytes / sizeof(uint32_t);
constexpr int kVectorsOfThread = kPieceBytes / (kDigestThreads * kVectorBytes);

PG_HD constexpr uint64_t mix_bits(uint64_t value) {  // splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

PG_HD constexpr uint32_t digest_key(int index) {
  return static_cast<uint32_t>(mix_bits((static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u));
}

/// The product sums of NH (UMAC) over the vectors of one thread, with two sets of keys: a change of
/// what the thread reads leaves both as they are with a chance of 2^-64.
struct ThreadDigest {
  uint64_t sums[2] = {0, 0};

  PG_HD void add(int vector, const uint32_t (&words)[kVectorWords]) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int set = 0; set < 2; ++set) {
      const int key = (vector + set) * kVectorWords;
      sums[set] +=
          static_cast<uint64_t>(words[0] + digest_key(key)) * (words[1] + digest_key(key + 1)) +
          static_cast<uint64_t>(words[2] + digest_key(key + 2)) * (words[3] + digest_key(key + 3));
    }
  }

  /// What the thread adds to the digest of the piece. Mixed with the thread's place, parts that
  /// change places, or changes of several parts, do not cancel.
  PG_HD PieceDigest part(int thread) const {
    const uint64_t place = static_cast<uint64_t>(thread) + 1;
    return {mix_bits(sums[0] + place * 0x9e3779b97f4a7c15u),
            mix_bits(sums[1] + place * 0xd1342543de82ef95u)};
  }
};

/// The words of the vector at `offset` of a segment; zeros behind its end.
PG_HD void load_words(const char* data, int64_t offset, int64_t num_bytes,
                      uint32_t (&words)[kVectorWords]) {
  const int64_t left = num_bytes - offset;
  for (uint32_t& word : words) word = 0;
  if (left > 0) memcpy(words, data + offset, left < kVectorBytes ? left : kVectorBytes);
}

}  // namespace peergraph
