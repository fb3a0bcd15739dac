// Copies of rows on a GPU: a thread moves a vector of 16 bytes of a row where addresses allow it.
#include <limits>

#include "aggregate/row_copy.h"
#include "aggregate/row_vector.cuh"
#include "aggregate/spmm.h"
#include "aggregate/vector_access.cuh"
#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

template <RowLayout kLayout, typename T, typename Out, int kVec, typename Index>
__global__ void __launch_bounds__(kBlockThreads)
    copy_vectors(const __grid_constant__ RowCopy op, Index per_row) {
  const Operands& operands = op.operands;
  const int64_t total = op.num_rows * static_cast<int64_t>(per_row);
  for (int64_t i = global_thread(); i < total; i += grid_threads()) {
    const Index row = static_cast<Index>(i) / per_row;
    const int64_t column = static_cast<int64_t>(static_cast<Index>(i) - row * per_row) * kVec;
    const char* from = kLayout == RowLayout::kDense
                           ? static_cast<const char*>(operands.x) +
                                 row * operands.row_stride() * static_cast<int64_t>(sizeof(T))
                           : reinterpret_cast<const char*>(operands.x_rows[row]);
    AccumulatorOf<T> values[kVec] = {};
    if (from != nullptr) {
      RowVector<kLayout, T, kVec> vector;
      const char* scales = kLayout == RowLayout::kInt8Apart
                               ? reinterpret_cast<const char*>(operands.scale_rows[row])
                               : from;
      vector.load_here(from, column, scales + scale_of_column(operands.codec, column));
      vector.widen_to(operands.codec, values);
    }
    Pack<Out, kVec> out;
#pragma unroll
    for (int k = 0; k < kVec; ++k) narrow(values[k], &out.values[k]);
    store_pack(static_cast<Out*>(op.out) + row * op.out_stride + column, out);
  }
}

template <RowLayout kLayout, typename T, typename Out, int kVec>
void launch_copy(const RowCopy& op, cudaStream_t stream) {
  const int64_t per_row = op.operands.columns / kVec, total = op.num_rows * per_row;
  // Divisions of 32 bits take a third of the time of divisions of 64 bits.
  if (total <= std::numeric_limits<uint32_t>::max()) {
    copy_vectors<kLayout, T, Out, kVec>
        <<<grid_for(total), kBlockThreads, 0, stream>>>(op, static_cast<uint32_t>(per_row));
  } else {
    copy_vectors<kLayout, T, Out, kVec>
        <<<grid_for(total), kBlockThreads, 0, stream>>>(op, static_cast<uint64_t>(per_row));
  }
  PG_LAUNCH_CHECK("copy_vectors");
}

/// Whether `vec` values can be read and written at once. With addresses, x is their bitwise or; the
/// values of a narrow row must have one scale.
bool can_copy_vectors(const RowCopy& op, int64_t vec) {
  const Operands& operands = op.operands;
  const auto from = reinterpret_cast<uintptr_t>(operands.x);
  const auto to = reinterpret_cast<uintptr_t>(op.out);
  const bool strides = operands.x_rows != nullptr || operands.row_stride() % vec == 0;
  const int64_t bytes = operands.is_narrow() ? operands.codec.stored_bytes() : bytes_of(op.dtype);
  return operands.columns % vec == 0 && operands.codec.group_columns % vec == 0 &&
         op.out_stride % vec == 0 && strides && from % (vec * bytes) == 0 &&
         to % (vec * bytes_of(op.out_dtype)) == 0;
}

}  // namespace

void copy_rows_cuda(const RowCopy& op, const Launch& launch) {
  check_out_dtype(op.dtype, op.out_dtype);
  if (op.num_rows == 0 || op.operands.columns == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_copied_dtypes(op.dtype, op.out_dtype, [&](auto from, auto to) {
    using T = decltype(from);
    using Out = decltype(to);
    constexpr int kVec = 16 / sizeof(T);
    const auto run = [&](auto layout) {
      constexpr RowLayout kLayout = decltype(layout)::value;
      can_copy_vectors(op, kVec) ? launch_copy<kLayout, T, Out, kVec>(op, stream)
                                 : launch_copy<kLayout, T, Out, 1>(op, stream);
    };
    if (op.operands.is_narrow()) {
      with_narrow_layout(op.operands, run);
    } else if (op.operands.x_rows == nullptr) {
      run(std::integral_constant<RowLayout, RowLayout::kDense>{});
    } else {
      run(std::integral_constant<RowLayout, RowLayout::kIndirect>{});
    }
  });
}

}  // namespace peergraph
