#include <cstring>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "memory/cuda_region.h"

namespace peergraph {
namespace {

// The driver packs small allocations into blocks of this size, and IPC shares whole blocks.
constexpr int64_t kIpcBlock = 2 << 20;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

uintptr_t cuda_malloc(int device, int64_t bytes) {
  DeviceGuard guard(device);
  void* memory = nullptr;
  const int64_t rounded = (bytes + kIpcBlock - 1) / kIpcBlock * kIpcBlock;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(rounded));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return 0;
  }
  cuda_check(status, "cudaMalloc");
  return reinterpret_cast<uintptr_t>(memory);
}

void cuda_free(int device, uintptr_t address) {
  DeviceGuard guard(device);
  PG_CUDA_CHECK(cudaDeviceSynchronize());
  PG_CUDA_CHECK(cudaFree(pointer(address)));
}

std::string ipc_handle(int device, uintptr_t address) {
  DeviceGuard guard(device);
  cudaIpcMemHandle_t handle;
  PG_CUDA_CHECK(cudaIpcGetMemHandle(&handle, pointer(address)));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

uintptr_t open_ipc(int device, const std::string& handle) {
  cudaIpcMemHandle_t raw;
  PG_CHECK_ARG(handle.size() == sizeof(raw), "handle is not a CUDA IPC handle");
  std::memcpy(&raw, handle.data(), sizeof(raw));
  DeviceGuard guard(device);
  void* memory = nullptr;
  PG_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, raw, cudaIpcMemLazyEnablePeerAccess));
  return reinterpret_cast<uintptr_t>(memory);
}

void close_ipc(int device, uintptr_t address) {
  DeviceGuard guard(device);
  PG_CUDA_CHECK(cudaDeviceSynchronize());
  PG_CUDA_CHECK(cudaIpcCloseMemHandle(pointer(address)));
}

void enable_peer_access(int device, int peer) {
  DeviceGuard guard(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  cuda_check(status, "cudaDeviceEnablePeerAccess");
}

void register_host(int device, uintptr_t address, int64_t bytes) {
  DeviceGuard guard(device);
  PG_CUDA_CHECK(cudaHostRegister(pointer(address), static_cast<size_t>(bytes),
                                 cudaHostRegisterPortable | cudaHostRegisterMapped));
  void* on_device = nullptr;
  PG_CUDA_CHECK(cudaHostGetDevicePointer(&on_device, pointer(address), 0));
  if (on_device == pointer(address)) return;
  cudaHostUnregister(pointer(address));
  throw std::runtime_error("cuda:" + std::to_string(device) +
                           " sees host memory at addresses of its own; peergraph needs one "
                           "address space for the CPU and the GPUs");
}

void unregister_host(int device, uintptr_t address) {
  DeviceGuard guard(device);
  PG_CUDA_CHECK(cudaDeviceSynchronize());
  PG_CUDA_CHECK(cudaHostUnregister(pointer(address)));
}

}  // namespace peergraph
