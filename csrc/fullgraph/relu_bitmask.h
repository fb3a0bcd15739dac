// ReLU that stores one bit of each element for its gradient, instead of the result.
#pragma once

#include <cstdint>

#include "common/bit_group.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

struct BitmaskOp {
  DType dtype = DType::kFloat32;
  int64_t num_elements = 0;
  const void* x = nullptr;
  uint8_t* bits = nullptr;  // [num_elements / 8, rounded up]; bits behind the last element are 0
  void* out = nullptr;      // [num_elements]; may be x

  PG_HD int64_t num_bytes() const { return mask_bytes(num_elements); }
};

/// out = max(x, 0), NaN where x is NaN; writes a bit for each element, 0 where the gradient is 0.
void relu_bitmask_cpu(const BitmaskOp& op, int num_threads);

/// out = x where the bit is 1, else 0.
void apply_bitmask_cpu(const BitmaskOp& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As on the CPU; asynchronous.
void relu_bitmask_cuda(const BitmaskOp& op, const Launch& launch);
void apply_bitmask_cuda(const BitmaskOp& op, const Launch& launch);
#endif

}  // namespace peergraph
