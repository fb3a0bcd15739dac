#include "common/cuda_check.cuh"
#include "memory/captures.h"

namespace peergraph {

void stay_outside_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  PG_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
}

}  // namespace peergraph
