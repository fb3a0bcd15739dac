// Gradients of extrema on a GPU: each value of a row's gradient goes to the one edge that had it.
#include "aggregate/spmm_minmax.h"
#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

/// The forward's winner of one row and column; position -1 where there is none.
template <typename T>
struct Winner {
  using Value = AccumulatorOf<T>;
  int64_t position;
  Value grad;

  __device__ __forceinline__ Winner(const ExtremumGrad& op, int64_t at) {
    position = load_id(op.arg, op.arg_bytes, at);
    grad = position < 0 ? Value{} : Value{widen(static_cast<const T*>(op.grad)[at])};
  }
};

template <typename T>
__device__ __forceinline__ AccumulatorOf<T> edge_value(const ExtremumGrad& op, int64_t position,
                                                       int64_t head) {
  if (op.of.e == nullptr) return 1;
  return widen(static_cast<const T*>(op.of.e)[op.rows.edge(position) * op.of.e_columns + head]);
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_to_columns(const __grid_constant__ ExtremumGrad op) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.of.columns, group = op.of.group();
  const int64_t size = op.rows.num_rows * columns;
  for (int64_t at = global_thread(); at < size; at += grid_threads()) {
    const Winner<T> winner(op, at);
    if (winner.position < 0) continue;
    const int64_t c = at % columns;
    const Value e = edge_value<T>(op, winner.position, c / group);
    atomicAdd(static_cast<Value*>(op.grad_x) + op.rows.column(winner.position) * columns + c,
              grad_of_u(op.of.message, winner.grad, e));
  }
}

/// The same in a fixed order: a thread for each value of grad_x looks through the edges of its row
/// of the transpose.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    gather_by_column(const __grid_constant__ ExtremumGrad op,
                     const __grid_constant__ CsrMatrix transpose) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.of.columns, group = op.of.group();
  const int64_t size = transpose.num_rows * columns;
  for (int64_t at = global_thread(); at < size; at += grid_threads()) {
    const int64_t source = at / columns, c = at % columns;
    Value sum = 0;
    const int64_t end = transpose.end(source);
    for (int64_t k = transpose.begin(source); k < end; ++k) {
      const Winner<T> winner(op, transpose.column(k) * columns + c);
      const int64_t position = transpose.edge(k);
      if (winner.position == position)
        sum += grad_of_u(op.of.message, winner.grad, edge_value<T>(op, position, c / group));
    }
    static_cast<Value*>(op.grad_x)[at] = sum;
  }
}

/// A thread has all columns of a row that share a value of an edge: no other writes to that value.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_to_edges(const __grid_constant__ ExtremumGrad op) {
  using Value = AccumulatorOf<T>;
  const int64_t heads = op.of.e_columns, group = op.of.group();
  const int64_t size = op.rows.num_rows * heads;
  const T* x = static_cast<const T*>(op.of.x);
  for (int64_t at = global_thread(); at < size; at += grid_threads()) {
    const int64_t row = at / heads, head = at % heads;
    for (int64_t c = head * group; c < (head + 1) * group; ++c) {
      const Winner<T> winner(op, row * op.of.columns + c);
      if (winner.position < 0) continue;
      const int64_t source = op.rows.column(winner.position);
      const Value u = x == nullptr ? Value{} : Value{widen(x[source * op.of.columns + c])};
      const Value e = edge_value<T>(op, winner.position, head);
      static_cast<Value*>(op.grad_e)[op.rows.edge(winner.position) * heads + head] +=
          grad_of_e(op.of.message, winner.grad, u, e);
    }
  }
}

}  // namespace

void extremum_grad_cuda(const ExtremumGrad& op, const CsrMatrix* transpose, int device,
                        uintptr_t stream_address) {
  if (op.rows.num_rows == 0 || op.of.columns == 0) return;
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    if (op.grad_x != nullptr && transpose == nullptr) {
      add_to_columns<T>
          <<<grid_for(op.rows.num_rows * op.of.columns), kBlockThreads, 0, stream>>>(op);
      PG_LAUNCH_CHECK("add_to_columns");
    } else if (op.grad_x != nullptr && transpose->num_rows > 0) {
      gather_by_column<T>
          <<<grid_for(transpose->num_rows * op.of.columns), kBlockThreads, 0, stream>>>(op,
                                                                                        *transpose);
      PG_LAUNCH_CHECK("gather_by_column");
    }
    if (op.grad_e != nullptr) {
      add_to_edges<T>
          <<<grid_for(op.rows.num_rows * op.of.e_columns), kBlockThreads, 0, stream>>>(op);
      PG_LAUNCH_CHECK("add_to_edges");
    }
  });
}

}  // namespace peergraph
