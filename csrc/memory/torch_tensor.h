// Tensors of torch as peergraph.memory allocates them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/torch_memory.h"
#include "memory/huge_pages.h"

namespace peergraph {

/// Returns a tensor; large ones on the CPU are in huge pages, as in launching.py.
inline TorchTensor torch_tensor(const TorchFunctions& torch, int device,
                                const std::vector<int64_t>& sizes, int32_t dtype,
                                int64_t num_bytes) {
  constexpr int64_t kLeastHugePageBytes = int64_t{4} << 20;
  TorchTensor result(torch, sizes, dtype, device);
  if (device < 0 && num_bytes >= kLeastHugePageBytes)
    ask_for_huge_pages(reinterpret_cast<uintptr_t>(result.data()), num_bytes);
  return result;
}

}  // namespace peergraph
