// Flags in shared memory, in the order of a stream.
#include "common/cuda_check.cuh"
#include "memory/flags.h"

namespace peergraph {
namespace {

__global__ void signal_flag(uint32_t* flag, uint32_t value) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

__device__ __forceinline__ int64_t nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void wait_for_flag(const __grid_constant__ FlagWait wait) {
  constexpr int kPollsOfHost = 64;  // polls of the flag for each of the host's memory
  const volatile int32_t* given_up = wait.given_up;
  const int64_t end = nanoseconds() + wait.timeout;
  for (int poll = 0; static_cast<int32_t>(load_acquire(wait.flag) - wait.value) < 0; ++poll) {
    if (poll % kPollsOfHost == 0) {
      if (*given_up != 0) return;
      if (nanoseconds() > end) {
        *wait.given_up = 1;
        __threadfence_system();
        return;
      }
    }
    __nanosleep(200);
  }
}

}  // namespace

void signal_flag_cuda(uint32_t* flag, uint32_t value, const Launch& launch) {
  DeviceGuard guard(launch.device);
  signal_flag<<<1, 1, 0, reinterpret_cast<cudaStream_t>(launch.stream)>>>(flag, value);
  PG_LAUNCH_CHECK("signal_flag");
}

void wait_for_flag_cuda(const FlagWait& wait, const Launch& launch) {
  DeviceGuard guard(launch.device);
  wait_for_flag<<<1, 1, 0, reinterpret_cast<cudaStream_t>(launch.stream)>>>(wait);
  PG_LAUNCH_CHECK("wait_for_flag");
}

}  // namespace peergraph
