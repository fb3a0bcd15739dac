#include "common/cuda_check.cuh"
#include "memory/capture_mode.h"

namespace peergraph {

void use_thread_local_capture_mode() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  PG_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
}

}  // namespace peergraph
