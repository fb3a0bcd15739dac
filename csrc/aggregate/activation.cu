// Bias, ReLU and dropout on a GPU: a thread reads and writes the elements of one byte of the
// bitmask, as vectors of 16 bytes where addresses and the width of rows allow it.
#include <limits>

#include "aggregate/activation.h"
#include "aggregate/bit_group.cuh"
#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

template <typename T, bool kVectors, typename Index>
__global__ void __launch_bounds__(kBlockThreads)
    activate(const __grid_constant__ Activation op, Index per_row) {
  using Value = AccumulatorOf<T>;
  const auto* bias = static_cast<const Value*>(op.bias);
  const auto scale = static_cast<Value>(op.scale);
  const uint64_t seed = op.threshold > 0 ? *op.seed : 0;
  const int64_t total = op.num_rows * static_cast<int64_t>(per_row);
  for (int64_t i = global_thread(); i < total; i += grid_threads()) {
    const Index row = static_cast<Index>(i) / per_row;
    const Index byte = static_cast<Index>(i) - row * per_row;
    const int64_t column = static_cast<int64_t>(byte) * kElementsOfByte;
    const auto count = static_cast<int>(min(int64_t{kElementsOfByte}, op.columns - column));
    const int64_t first = static_cast<int64_t>(row) * op.columns + column;
    BitGroup<T, kVectors> group;
    group.load(static_cast<const T*>(op.x) + first, count);
    unsigned passing = 0xff;
    if (op.threshold > 0) {
      const RandomGroup random(seed, row, byte);
#pragma unroll
      for (int k = 0; k < kElementsOfByte; ++k)
        if (random.of(k) < op.threshold) passing &= ~(1u << k);
    }
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kElementsOfByte; ++k) {
      if (!kVectors && k >= count) break;
      Value value = widen(group.values[k]);
      if (bias != nullptr) value += __ldg(bias + column + k);
      const bool passes = !(op.relu && value <= 0) && (passing >> k & 1u) != 0;
      bits |= static_cast<unsigned>(passes) << k;
      narrow(passes ? multiply_exact(value, scale) : Value{0}, &group.values[k]);
    }
    group.store(static_cast<T*>(op.out) + first, count);
    if (op.bits != nullptr) op.bits[i] = static_cast<uint8_t>(bits);
  }
}

/// A block computes a part of the rows, several rows at a time, and columns of blockIdx.y.
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kBlockThreads)
    activate_backward(const __grid_constant__ ActivationGradient op) {
  using Value = AccumulatorOf<T>;
  __shared__ Value shared[kElementsOfByte][kBlockThreads];
  const int64_t bytes = op.bytes_of_row(), first_byte = int64_t{blockIdx.y} * kBlockThreads;
  const auto width = static_cast<int>(min(int64_t{kBlockThreads}, bytes - first_byte));
  const int rows_at_once = kBlockThreads / width;
  const int thread = static_cast<int>(threadIdx.x);
  const int row_of_thread = thread / width;
  const int64_t byte = first_byte + thread % width, column = byte * kElementsOfByte;
  const auto count = static_cast<int>(min(int64_t{kElementsOfByte}, op.columns - column));
  const auto scale = static_cast<Value>(op.scale);
  const int64_t last = op.first_row(blockIdx.x + 1);
  Value sums[kElementsOfByte] = {};
  if (row_of_thread < rows_at_once) {
#pragma unroll 2
    for (int64_t row = op.first_row(blockIdx.x) + row_of_thread; row < last; row += rows_at_once) {
      const int64_t first = row * op.columns + column;
      BitGroup<T, kVectors> group;
      group.load(static_cast<const T*>(op.grad) + first, count);
      const unsigned bits = op.bits[row * bytes + byte];
#pragma unroll
      for (int k = 0; k < kElementsOfByte; ++k) {
        if (!kVectors && k >= count) break;
        const bool passes = (bits >> k & 1u) != 0;
        const Value value = passes ? multiply_exact(widen(group.values[k]), scale) : Value{0};
        sums[k] += value;
        narrow(value, &group.values[k]);
      }
      group.store(static_cast<T*>(op.out) + first, count);
    }
  }
  if (op.partial == nullptr) return;
#pragma unroll
  for (int k = 0; k < kElementsOfByte; ++k) shared[k][thread] = sums[k];
  __syncthreads();
  if (thread >= width) return;
  auto* partial = static_cast<Value*>(op.partial) + int64_t{blockIdx.x} * op.columns + column;
#pragma unroll
  for (int k = 0; k < kElementsOfByte; ++k) {
    if (k >= count) break;
    Value sum = 0;
    for (int row = 0; row < rows_at_once; ++row) sum += shared[k][row * width + thread];
    partial[k] = sum;
  }
}

/// Whether all elements of each byte can be read and written as vectors.
bool can_use_vectors(int64_t columns, const void* in, const void* out) {
  const auto addresses = reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out);
  return columns % kElementsOfByte == 0 && addresses % 16 == 0;
}

}  // namespace

void activate_cuda(const Activation& op, const Launch& launch) {
  const int64_t per_row = op.bytes_of_row(), total = op.num_rows * per_row;
  if (total == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const bool vectors = can_use_vectors(op.columns, op.x, op.out);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    // Divisions of 32 bits take a third of the time of divisions of 64 bits.
    const auto run = [&](auto width) {
      using Index = decltype(width);
      vectors ? activate<T, true, Index><<<grid_for(total), kBlockThreads, 0, stream>>>(op, width)
              : activate<T, false, Index><<<grid_for(total), kBlockThreads, 0, stream>>>(op, width);
      PG_LAUNCH_CHECK("activate");
    };
    total <= std::numeric_limits<uint32_t>::max() ? run(static_cast<uint32_t>(per_row))
                                                  : run(static_cast<uint64_t>(per_row));
  });
}

void activate_backward_cuda(const ActivationGradient& op, const Launch& launch) {
  if (op.num_rows == 0 || op.columns == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const bool vectors = can_use_vectors(op.columns, op.grad, op.out);
  const int64_t slices = (op.bytes_of_row() + kBlockThreads - 1) / kBlockThreads;
  PG_CHECK_ARG(slices <= 65535, "features of so many columns are not supported on a GPU");
  const dim3 grid(static_cast<unsigned>(op.num_parts), static_cast<unsigned>(slices));
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    vectors ? activate_backward<T, true><<<grid, kBlockThreads, 0, stream>>>(op)
            : activate_backward<T, false><<<grid, kBlockThreads, 0, stream>>>(op);
    PG_LAUNCH_CHECK("activate_backward");
  });
}

}  // namespace peergraph
