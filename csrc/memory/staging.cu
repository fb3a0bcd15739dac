#include "common/cuda_check.cuh"
#include "memory/staging.h"

namespace peergraph {

void copy_to_gpu(char* target, const char* source, int64_t num_bytes, int device,
                 uintptr_t stream) {
  // The previous device is not restored: in a new thread that is GPU 0, and setting it would create
  // a context there.
  PG_CUDA_CHECK(cudaSetDevice(device));
  PG_CUDA_CHECK(cudaMemcpyAsync(target, source, num_bytes, cudaMemcpyHostToDevice,
                                reinterpret_cast<cudaStream_t>(stream)));
}

}  // namespace peergraph
