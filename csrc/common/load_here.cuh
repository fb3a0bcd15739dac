// Loads that stay in their place. nvcc would move a load to the first use of its result, behind a
// branch, and loads that should be in flight together would wait for each other. None uses the L1
// cache: a multiprocessor seldom reads rows of other nodes again.
#pragma once

#include <cstdint>
#include <cstring>

namespace peergraph {

/// The registers of kBytes adjacent bytes: 1, 2, 4, 8 or 16.
template <int kBytes>
struct Words {
  static_assert(kBytes == 1 || kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  uint32_t words[(kBytes + 3) / 4];
};

/// Reads kBytes bytes at `at`, a multiple of kBytes.
template <int kBytes>
__device__ __forceinline__ Words<kBytes> load_here(const void* at) {
  Words<kBytes> result;
  uint32_t* w = result.words;
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(at));
  } else if constexpr (kBytes == 8) {
    unsigned long long raw;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(raw) : "l"(at));
    memcpy(w, &raw, sizeof(raw));
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(w[0]) : "l"(at));
  } else if constexpr (kBytes == 2) {
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=r"(w[0]) : "l"(at));
  } else {
    asm volatile("ld.global.cg.u8 %0, [%1];" : "=r"(w[0]) : "l"(at));
  }
  return result;
}

/// Reads as load_here if `wanted`; otherwise `result` keeps its values, without a branch.
template <int kBytes>
__device__ __forceinline__ void load_if(bool wanted, const void* at, Words<kBytes>* result) {
  const auto condition = static_cast<unsigned>(wanted);
  uint32_t* w = result->words;
#define PG_LOAD_IF(load) "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, " load "}"
  if constexpr (kBytes == 16) {
    asm volatile(PG_LOAD_IF("%5, 0;\n@wanted ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n")
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "l"(at), "r"(condition));
  } else if constexpr (kBytes == 8) {
    unsigned long long raw;
    memcpy(&raw, w, sizeof(raw));
    asm volatile(PG_LOAD_IF("%2, 0;\n@wanted ld.global.cg.u64 %0, [%1];\n")
                 : "+l"(raw)
                 : "l"(at), "r"(condition));
    memcpy(w, &raw, sizeof(raw));
  } else if constexpr (kBytes == 4) {
    asm volatile(PG_LOAD_IF("%2, 0;\n@wanted ld.global.cg.u32 %0, [%1];\n")
                 : "+r"(w[0])
                 : "l"(at), "r"(condition));
  } else if constexpr (kBytes == 2) {
    asm volatile(PG_LOAD_IF("%2, 0;\n@wanted ld.global.cg.u16 %0, [%1];\n")
                 : "+r"(w[0])
                 : "l"(at), "r"(condition));
  } else {
    asm volatile(PG_LOAD_IF("%2, 0;\n@wanted ld.global.cg.u8 %0, [%1];\n")
                 : "+r"(w[0])
                 : "l"(at), "r"(condition));
  }
#undef PG_LOAD_IF
}

}  // namespace peergraph
