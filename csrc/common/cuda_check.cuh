// CUDA calls that throw, the device guard, and launch geometry shared by all kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace peergraph {

inline void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // a sticky error would otherwise be reported again by the next call
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ", " +
                             cudaGetErrorString(status));
  }
}

/// Makes `device` current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cuda_check(cudaGetDevice(&previous_), "cudaGetDevice");
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

constexpr int kBlockThreads = 256;

/// Blocks for a grid-stride loop over n items: enough to fill the device, never more than needed.
inline unsigned grid_for(int64_t n, int64_t items_per_block = kBlockThreads,
                         int64_t max_blocks = 1 << 20) {
  return static_cast<unsigned>(
      std::max<int64_t>(1, std::min((n + items_per_block - 1) / items_per_block, max_blocks)));
}

__device__ __forceinline__ int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t grid_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace peergraph

#define PG_CUDA_CHECK(call) ::peergraph::cuda_check((call), #call)
#define PG_LAUNCH_CHECK(kernel) ::peergraph::cuda_check(cudaGetLastError(), "launch of " kernel)
