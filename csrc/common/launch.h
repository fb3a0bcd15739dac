// Where an operation runs.
#pragma once

#include <cstdint>

namespace peergraph {

struct Launch {
  int device = -1;       // index of the GPU; -1: the CPU
  uintptr_t stream = 0;  // address of the CUDA stream; 0 on the CPU
  int num_threads = 1;   // for work on the CPU, also if `device` is a GPU
};

}  // namespace peergraph
