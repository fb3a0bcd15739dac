// Several values at once, read and written with the caching that suits them.
#pragma once

#include <cstring>

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

/// Past the L1 cache: rows of other nodes hardly ever recur within a multiprocessor.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack(const T* at) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  const Raw raw = __ldcg(reinterpret_cast<const Raw*>(at));
  Pack<T, kVec> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

/// By way of the L1 cache, for what neighbouring edges share.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_shared_pack(const T* at) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  const Raw raw = __ldg(reinterpret_cast<const Raw*>(at));
  Pack<T, kVec> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

/// Results are not read again soon: they should not push features out of the L2 cache.
template <typename T, int kVec>
__device__ __forceinline__ void store_pack(T* at, const Pack<T, kVec>& pack) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  Raw raw;
  memcpy(&raw, &pack, sizeof(raw));
  __stcs(reinterpret_cast<Raw*>(at), raw);
}

}  // namespace peergraph
