// g-SpMM of narrow rows on a GPU.
#pragma once

#include <cuda_runtime.h>

#include "aggregate/spmm.h"

namespace peergraph {

/// As spmm_cuda, for operands with a codec, on the current device.
void spmm_narrow_rows(const Spmm& op, const Allocate& allocate, cudaStream_t stream);

}  // namespace peergraph
