// Reading rows so that the L2 cache keeps the hottest: where nodes are numbered by hotness those
// are the first.
#pragma once

#include <cstdint>
#include <cstring>

#include "aggregate/lanes.cuh"

namespace peergraph {

/// Rows that fit the share of the L2 cache that is theirs, at `row_bytes` each.
inline int64_t hot_rows(int64_t row_bytes, int percent, int device) {
  int bytes = 0;
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
  return int64_t{bytes} * percent / 100 / row_bytes;
}

/// Loads 16 bytes of a row: those of the first `hot` rows are the last that L2 evicts, the others
/// the first.
class HotReader {
 public:
  static constexpr bool kByAddress = false;
  static constexpr int kThreads = kRowThreads;

  __device__ __forceinline__ explicit HotReader(int64_t hot) : hot_(hot) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep_));
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(drop_));
  }

  template <typename T, int kVec>
  __device__ __forceinline__ Pack<T, kVec> load(const T* at, int64_t row) const {
    static_assert(sizeof(T) * kVec == 16, "for vectors of 16 bytes");
    int4 raw;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.s32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(at), "l"(row < hot_ ? keep_ : drop_));
    Pack<T, kVec> pack;
    memcpy(&pack, &raw, sizeof(pack));
    return pack;
  }

 private:
  int64_t hot_;
  uint64_t keep_;
  uint64_t drop_;
};

}  // namespace peergraph
