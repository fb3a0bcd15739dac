// Reads and writes several values at once, with suitable caching.
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

/// Reads without the L1 cache: a multiprocessor seldom reads rows of other nodes again.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack(const T* at) {
  using Raw = typename RawOf<sizeof(T) * kVec>::type;
  const Raw raw = __ldcg(reinterpret_cast<const Raw*>(at));
  Pack<T, kVec> pack;
  memcpy(&pack, &raw, sizeof(pack));
  return pack;
}

/// As load_pack, but the load stays in its place: nvcc would move it to the first use, behind a
/// branch, and loads that should be in flight together would wait for each other.
template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack_here(const T* at) {
  constexpr int kBytes = sizeof(T) * kVec;
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4 || kBytes == 2);
  Pack<T, kVec> pack;
  if constexpr (kBytes == 16) {
    uint4 raw;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(at));
    memcpy(&pack, &raw, sizeof(pack));
  } else if constexpr (kBytes == 8) {
    unsigned long long raw;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(raw) : "l"(at));
    memcpy(&pack, &raw, sizeof(pack));
  } else if constexpr (kBytes == 4) {
    unsigned raw;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(raw) : "l"(at));
    memcpy(&pack, &raw, sizeof(pack));
  } else {
    unsigned short raw;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(raw) : "l"(at));
    memcpy(&pack, &raw, sizeof(pack));
  }
  return pack;
}

/// As load_pack_here if `wanted`; otherwise `pack` keeps its values, without a branch and without a
/// read.
template <typename T, int kVec>
__device__ __forceinline__ void load_pack_if(bool wanted, const T* at, Pack<T, kVec>* pack) {
  static_assert(sizeof(*pack) == 16);
  uint4 raw;
  memcpy(&raw, pack, sizeof(raw));
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)
      : "l"(at), "r"(static_cast<unsigned>(wanted)));
  memcpy(pack, &raw, sizeof(raw));
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
