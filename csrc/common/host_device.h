// Marks functions that are compiled for the host and, under nvcc, for the device too.
#pragma once

#ifdef __CUDACC__
#define PG_HD __host__ __device__ __forceinline__
#else
#define PG_HD inline
#endif
