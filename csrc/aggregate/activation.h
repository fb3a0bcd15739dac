// Bias, ReLU and dropout in one pass. A bit of each element is kept for the gradient, which is one
// pass, too, and sums the gradient of the bias.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/element.h"
#include "common/exact.h"
#include "common/host_device.h"
#include "common/launch.h"
#include "common/philox.h"

namespace peergraph {

/// The number of elements in a byte of a bitmask; the first element has the lowest bit.
constexpr int kElementsOfByte = 8;

/// The bytes for `elements` elements.
constexpr int64_t mask_bytes(int64_t elements) {
  return (elements + kElementsOfByte - 1) / kElementsOfByte;
}

/// An element is dropped if its 16 random bits are below a threshold in 0 .. 2^16.
constexpr uint32_t kRandomRange = 1u << 16;

struct Activation {
  DType dtype = DType::kFloat32;  // of x and out
  int64_t num_rows = 0;
  int64_t columns = 0;
  const void* x = nullptr;     // [num_rows, columns]
  const void* bias = nullptr;  // [columns] of float (double for double), or null
  bool relu = true;
  uint32_t threshold = 0;  // 0: nothing is dropped
  double scale = 1;        // of the elements that are kept
  /// The seed of the dropped elements, in memory of the device that computes; null without dropout.
  const uint64_t* seed = nullptr;
  uint8_t* bits = nullptr;  // [num_rows, bytes_of_row()], or null: the gradient is not needed
  void* out = nullptr;      // [num_rows, columns]

  PG_HD int64_t bytes_of_row() const { return mask_bytes(columns); }
};

/// out = (x + bias) * scale where the element passes, else 0. An element passes if ReLU does not
/// make it 0 (NaN passes) and it is not dropped; then its bit is 1. Dropped elements depend on
/// (seed, row, column) alone.
void activate_cpu(const Activation& op, int num_threads);

/// The most parts of the rows over which gradients are summed: a block for each, as many as run at
/// once on an H200.
constexpr int64_t kMostParts = 660;

inline int64_t activation_parts(int64_t num_rows) {
  return std::max<int64_t>(1, std::min(num_rows, kMostParts));
}

struct ActivationGradient {
  DType dtype = DType::kFloat32;  // of grad and out
  int64_t num_rows = 0;
  int64_t columns = 0;
  const void* grad = nullptr;  // [num_rows, columns]
  const uint8_t* bits = nullptr;
  double scale = 1;
  void* out = nullptr;  // [num_rows, columns]; may be grad
  /// [num_parts, columns] of float (double for double): sums of `out`, before it is rounded, over
  /// the rows of each part; or null.
  void* partial = nullptr;
  int64_t num_parts = 1;

  PG_HD int64_t bytes_of_row() const { return mask_bytes(columns); }
  PG_HD int64_t first_row(int64_t part) const {
    const int64_t rows = (num_rows + num_parts - 1) / num_parts;
    return part * rows < num_rows ? part * rows : num_rows;
  }
};

/// out = grad * scale where the bit is 1, else 0.
void activate_backward_cpu(const ActivationGradient& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As on the CPU, with the same bits; `partial` is summed in another order. Asynchronous.
void activate_cuda(const Activation& op, const Launch& launch);
void activate_backward_cuda(const ActivationGradient& op, const Launch& launch);
#endif

/// The rounds of the generator for dropout: the fewest that pass all tests of randomness (Salmon et
/// al. 2011). With ten, the GPU waits for the generator instead of the memory.
constexpr int kDropoutRounds = 7;

/// The 16 random bits of each of the 8 elements of a byte.
struct RandomGroup {
  Philox4x32 block;

  PG_HD RandomGroup(uint64_t seed, int64_t row, int64_t byte)
      : block(philox(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(byte),
                     kDropoutRounds)) {}

  PG_HD uint32_t of(int element) const {
    return block.v[element / 2] >> (element % 2 * 16) & (kRandomRange - 1);
  }
};

}  // namespace peergraph
