// Bitmasks on a GPU: a thread reads and writes the elements of one byte as vectors of 16 bytes
// where addresses allow it.
#include "common/bit_group.cuh"
#include "common/cuda_check.cuh"
#include "fullgraph/relu_bitmask.h"

namespace peergraph {
namespace {

template <typename T, bool kVectors, bool kIsRelu>
__global__ void __launch_bounds__(kBlockThreads) bitmask(const __grid_constant__ BitmaskOp op) {
  const int64_t bytes = op.num_bytes();
  for (int64_t b = global_thread(); b < bytes; b += grid_threads()) {
    const int64_t first = b * kElementsOfByte;
    const auto count = static_cast<int>(min(int64_t{kElementsOfByte}, op.num_elements - first));
    BitGroup<T, kVectors> group;
    group.load(static_cast<const T*>(op.x) + first, count);
    unsigned bits = kIsRelu ? 0 : op.bits[b];
#pragma unroll
    for (int i = 0; i < kElementsOfByte; ++i) {
      if (!kVectors && i >= count) break;
      if constexpr (kIsRelu) bits |= static_cast<unsigned>(!(widen(group.values[i]) <= 0)) << i;
      if ((bits >> i & 1u) == 0) group.values[i] = T{};
    }
    group.store(static_cast<T*>(op.out) + first, count);
    if constexpr (kIsRelu) op.bits[b] = static_cast<uint8_t>(bits);
  }
}

template <bool kIsRelu>
void run(const BitmaskOp& op, const Launch& launch) {
  if (op.num_elements == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const auto addresses = reinterpret_cast<uintptr_t>(op.x) | reinterpret_cast<uintptr_t>(op.out);
  const bool vectors = addresses % 16 == 0 && op.num_elements % kElementsOfByte == 0;
  const unsigned grid = grid_for(op.num_bytes());
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    vectors ? bitmask<T, true, kIsRelu><<<grid, kBlockThreads, 0, stream>>>(op)
            : bitmask<T, false, kIsRelu><<<grid, kBlockThreads, 0, stream>>>(op);
    PG_LAUNCH_CHECK("bitmask");
  });
}

}  // namespace

void relu_bitmask_cuda(const BitmaskOp& op, const Launch& launch) { run<true>(op, launch); }

void apply_bitmask_cuda(const BitmaskOp& op, const Launch& launch) { run<false>(op, launch); }

}  // namespace peergraph
