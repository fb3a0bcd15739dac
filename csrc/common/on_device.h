// Picks the CPU or the CUDA twin of an operation; the CUDA one is not compiled in a CPU-only build.
#pragma once

#include "common/check.h"

/// Evaluates `cpu_call` where `device` is negative, else `cuda_call`.
#ifdef PEERGRAPH_CUDA
#define PG_ON_DEVICE(device, cpu_call, cuda_call) \
  do {                                            \
    if ((device) < 0) {                           \
      cpu_call;                                   \
    } else {                                      \
      cuda_call;                                  \
    }                                             \
  } while (0)
#else
#define PG_ON_DEVICE(device, cpu_call, cuda_call)                           \
  do {                                                                      \
    PG_CHECK_ARG((device) < 0, "this build of peergraph has no CUDA part"); \
    cpu_call;                                                               \
  } while (0)
#endif
