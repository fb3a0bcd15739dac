// The elements of one byte of a bitmask, as a GPU reads and writes them.
#pragma once

#include "aggregate/activation.h"

namespace peergraph {

template <typename T>
constexpr int kElementsOfVector = 16 / sizeof(T);

/// Elements that are read and written at once.
template <typename T>
struct alignas(16) VectorOf16Bytes {
  T values[kElementsOfVector<T>];
};

/// The elements of one byte; kVectors: all of them, at an address that is a multiple of 16 bytes.
template <typename T, bool kVectors>
struct BitGroup {
  T values[kElementsOfByte];

  __device__ __forceinline__ void load(const T* from, int count) {
    if constexpr (kVectors) {
#pragma unroll
      for (int v = 0; v < kElementsOfByte / kElementsOfVector<T>; ++v) {
        const auto vector = reinterpret_cast<const VectorOf16Bytes<T>*>(from)[v];
#pragma unroll
        for (int i = 0; i < kElementsOfVector<T>; ++i)
          values[v * kElementsOfVector<T> + i] = vector.values[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElementsOfByte; ++i)
        if (i < count) values[i] = from[i];
    }
  }

  __device__ __forceinline__ void store(T* to, int count) const {
    if constexpr (kVectors) {
#pragma unroll
      for (int v = 0; v < kElementsOfByte / kElementsOfVector<T>; ++v) {
        VectorOf16Bytes<T> vector;
#pragma unroll
        for (int i = 0; i < kElementsOfVector<T>; ++i)
          vector.values[i] = values[v * kElementsOfVector<T> + i];
        reinterpret_cast<VectorOf16Bytes<T>*>(to)[v] = vector;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElementsOfByte; ++i)
        if (i < count) to[i] = values[i];
    }
  }
};

}  // namespace peergraph
