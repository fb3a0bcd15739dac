// Reads and writes several values at once, with suitable caching.
#pragma once

#include <cstring>

#include "common/load_here.cuh"

namespace peergraph {

/// kVec values that are read and written at once.
template <typename T, int kVec>
struct alignas(sizeof(T) * kVec) Pack {
  T values[kVec];
};

template <int kBytes>
struct RawOf;
template <>
struct RawOf<16> {
  using type = int4;
};
template <>
struct RawOf<8> {
  using type = long long;
};
template <>
struct RawOf<4> {
  using type = int;
};
template <>
struct RawOf<2> {
  using type = short;
};

/// Reads without the L1 cache: a multiprocessor seldom reads rows of other nodes again.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack(const T* at) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  const Raw raw = __ldcg(reinterpret_cast<const Raw*>(at));
  Pack<T, kVec> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

/// As load_pack, but the load stays in its place.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack_here(const T* at) {
  const auto raw = load_here<sizeof(T) * kVec>(at);
  Pack<T, kVec> pack;
  memcpy(&pack, raw.words, sizeof(pack));
  return pack;
}

/// As load_pack_here if `wanted`; otherwise `pack` keeps its values, without a branch.
template <typename T, int kVec>
__device__ __forceinline__ void load_pack_if(bool wanted, const T* at, Pack<T, kVec>* pack) {
  Words<sizeof(*pack)> raw;
  static_assert(sizeof(raw) == sizeof(*pack));
  memcpy(raw.words, pack, sizeof(*pack));
  load_if(wanted, at, &raw);
  memcpy(pack, raw.words, sizeof(*pack));
}

/// Reads through the L1 cache, for values that neighbouring edges share.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_shared_pack(const T* at) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  const Raw raw = __ldg(reinterpret_cast<const Raw*>(at));
  Pack<T, kVec> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

/// Writes results, which are not read again soon and should not evict features from the L2 cache.
template <typename T, int kVec>
__device__ __forceinline__ void store_pack(T* at, const Pack<T, kVec>& pack) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  Raw raw;
  memcpy(&raw, &pack, sizeof(raw));
  __stcs(reinterpret_cast<Raw*>(at), raw);
}

}  // namespace peergraph
