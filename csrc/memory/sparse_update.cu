// Sums of runs and the optimizers' update. In both, a group of lanes (a power of two, at most 32)
// works on a row, so that narrow rows do not leave lanes idle.
#include <algorithm>
#include <type_traits>

#include "common/cuda_check.cuh"
#include "memory/sparse_update.h"

namespace peergraph {
namespace {

// The bytes of a row that a lane reads at once, if the row's bytes are a multiple of it.
constexpr int kVectorBytes = 16;

/// Adjacent elements that a lane reads or writes at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// The first row and column that a thread works on, and the steps to its next ones.
struct Lanes {
  int64_t row, row_step;
  int column, column_step;
};

__device__ __forceinline__ Lanes lanes_of(int lanes_per_row_log2) {
  const int lanes = 1 << lanes_per_row_log2;
  return {global_thread() >> lanes_per_row_log2, grid_threads() >> lanes_per_row_log2,
          static_cast<int>(threadIdx.x) & (lanes - 1), lanes};
}

int lanes_per_row_log2(int64_t columns) {
  int log2 = 0;
  while (log2 < 5 && (int64_t{1} << log2) < columns) ++log2;
  return log2;
}

unsigned blocks_for(int64_t rows, int lanes_log2) {
  return grid_for(rows, kBlockThreads >> lanes_log2);
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    sum_runs(const Pack<T, kCount>* values, int64_t packs_per_row, Runs runs,
             Pack<AccumulatorOf<T>, kCount>* out, int lanes_log2) {
  using A = AccumulatorOf<T>;
  const Lanes lanes = lanes_of(lanes_log2);
  for (int64_t r = lanes.row; r < runs.count; r += lanes.row_step) {
    const int64_t begin = runs.offsets[r], end = runs.offsets[r + 1];
    for (int64_t c = lanes.column; c < packs_per_row; c += lanes.column_step) {
      Pack<A, kCount> sum = {};
      // The additions run in order, one after the other. Unrolling lets the loads of four rows run
      // at the same time.
#pragma unroll 4
      for (int64_t i = begin; i < end; ++i) {
        const Pack<T, kCount> row = values[runs.positions[i] * packs_per_row + c];
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          sum.values[k] = add_exact(sum.values[k], widen(row.values[k]));
      }
      out[r * packs_per_row + c] = sum;
    }
  }
}

template <typename P>
__device__ __forceinline__ void write_row_pack(const TableView& table, int64_t row, char* own,
                                               int64_t column, const P& value) {
  if (row >= table.map.replicated) {
    reinterpret_cast<P*>(own)[column] = value;
    return;
  }
  for (int32_t r = 0; r < table.num_replicas; ++r)
    reinterpret_cast<P*>(table.replicas[r] + row * table.row_bytes)[column] = value;
}

template <typename T, int kCount, typename Rule>
__global__ void __launch_bounds__(kBlockThreads)
    update_rows(const __grid_constant__ TrainedRows trained, RowGradients grads,
                int64_t packs_per_row, AccumulatorOf<T> grad_scale, Rule rule, int lanes_log2) {
  using A = AccumulatorOf<T>;
  using Wide = Pack<A, kCount>;
  const Lanes lanes = lanes_of(lanes_log2);
  for (int64_t i = lanes.row; i < grads.count; i += lanes.row_step) {
    const int64_t row = grads.rows[i];
    char* const weights = trained.table.row(row);
    Wide* states[kMaxStates] = {};
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s)
      states[s] = reinterpret_cast<Wide*>(trained.states[s].row(row));
    const Wide* grad = static_cast<const Wide*>(grads.values) + i * packs_per_row;

    for (int64_t c = lanes.column; c < packs_per_row; c += lanes.column_step) {
      const Pack<T, kCount> weight = reinterpret_cast<const Pack<T, kCount>*>(weights)[c];
      const Wide change = grad[c];
      Wide state[kMaxStates] = {};
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) state[s] = states[s][c];
      Pack<T, kCount> updated;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        A element[kMaxStates] = {};
#pragma unroll
        for (int s = 0; s < Rule::kStates; ++s) element[s] = state[s].values[k];
        narrow(rule(widen(weight.values[k]), multiply_exact(grad_scale, change.values[k]), element),
               &updated.values[k]);
#pragma unroll
        for (int s = 0; s < Rule::kStates; ++s) state[s].values[k] = element[s];
      }
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) states[s][c] = state[s];
      write_row_pack(trained.table, row, weights, c, updated);
    }
  }
}

/// Calls body(std::integral_constant<int, elements>) with the most elements of type A that divide
/// a row and fill at most kVectorBytes.
template <typename A, typename Body>
void with_pack(int64_t width, Body&& body) {
  constexpr int kMost = kVectorBytes / static_cast<int>(sizeof(A));
  // Rows are adjacent and the first is aligned, so all rows are aligned.
  if (width % kMost == 0) return body(std::integral_constant<int, kMost>{});
  body(std::integral_constant<int, 1>{});
}

bool aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0;
}

}  // namespace

void sum_runs_cuda(const void* values, DType dtype, int64_t width, const Runs& runs, void* out,
                   int device, uintptr_t stream) {
  if (runs.count == 0 || width == 0) return;
  PG_CHECK_ARG(aligned(values) && aligned(out), "values and out must be aligned to 16 bytes");
  DeviceGuard guard(device);
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    using A = AccumulatorOf<T>;
    with_pack<A>(width, [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const int64_t packs = width / kCount;
      const int lanes = lanes_per_row_log2(packs);
      sum_runs<T, kCount><<<blocks_for(runs.count, lanes), kBlockThreads, 0,
                            reinterpret_cast<cudaStream_t>(stream)>>>(
          static_cast<const Pack<T, kCount>*>(values), packs, runs,
          static_cast<Pack<A, kCount>*>(out), lanes);
      PG_LAUNCH_CHECK("sum_runs");
    });
  });
}

void sparse_update_cuda(const TrainedRows& trained, const RowGradients& grads,
                        const UpdateRule& rule, int device, uintptr_t stream) {
  if (grads.count == 0 || grads.width == 0) return;
  PG_CHECK_ARG(aligned(grads.values), "gradients must be aligned to 16 bytes");
  DeviceGuard guard(device);
  with_dtype(trained.dtype, [&](auto element) {
    using T = decltype(element);
    using A = AccumulatorOf<T>;
    with_rule<A>(rule, [&](const auto& typed) {
      with_pack<A>(grads.width, [&](auto count) {
        constexpr int kCount = decltype(count)::value;
        const int64_t packs = grads.width / kCount;
        const int lanes = lanes_per_row_log2(packs);
        update_rows<T, kCount><<<blocks_for(grads.count, lanes), kBlockThreads, 0,
                                 reinterpret_cast<cudaStream_t>(stream)>>>(
            trained, grads, packs, static_cast<A>(rule.grad_scale), typed, lanes);
        PG_LAUNCH_CHECK("update_rows");
      });
    });
  });
}

}  // namespace peergraph
