// GPU memory shared between processes by CUDA IPC, and host memory pinned for GPUs
// (WholeGraph III-B).
#pragma once

#include <cstdint>
#include <string>

namespace peergraph {

/// Allocates on `device`; returns 0 if there is not enough memory.
uintptr_t cuda_malloc(int device, int64_t bytes);

/// Waits for the device and frees what cuda_malloc returned.
void cuda_free(int device, uintptr_t address);

/// The handle by which other processes open memory of cuda_malloc.
std::string ipc_handle(int device, uintptr_t address);

/// Maps another process's allocation for `device`; peer access is enabled on first use.
uintptr_t open_ipc(int device, const std::string& handle);

/// Waits for the device and undoes open_ipc.
void close_ipc(int device, uintptr_t address);

/// Lets kernels on `device` access memory that this process has allocated on `peer`.
void enable_peer_access(int device, int peer);

/// Pins mapped host memory, so that kernels of every device of this process can access it at the
/// same address.
void register_host(int device, uintptr_t address, int64_t bytes);

/// Waits for the device and undoes register_host.
void unregister_host(int device, uintptr_t address);

}  // namespace peergraph
