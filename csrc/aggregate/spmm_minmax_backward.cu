// Gradients of extrema on a GPU: each value of a row's gradient goes to the one edge that had it.
#include "aggregate/spmm_minmax.h"
#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

/// The message that was the extremum of one row and column; position -1 if there is none.
template <typename T>
struct Winner {
  using Value = AccumulatorOf<T>;
  int64_t position;
  Value grad;

  __device__ __forceinline__ Winner(const SpmmMinMaxBackward& op, int64_t index) {
    position = load_id(op.arg, op.arg_bytes, index);
    grad = position < 0 ? Value{} : Value{widen(static_cast<const T*>(op.grad)[index])};
  }
};

template <typename T>
__device__ __forceinline__ AccumulatorOf<T> edge_value(const SpmmMinMaxBackward& op,
                                                       int64_t position, int64_t head) {
  if (op.operands.e == nullptr) return 1;
  return widen(static_cast<const T*>(
      op.operands.e)[op.matrix.edge(position) * op.operands.e_columns + head]);
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_to_columns(const __grid_constant__ SpmmMinMaxBackward op) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.operands.columns, group = op.operands.group();
  const int64_t size = op.matrix.num_rows * columns;
  for (int64_t index = global_thread(); index < size; index += grid_threads()) {
    const Winner<T> winner(op, index);
    if (winner.position < 0) continue;
    const int64_t c = index % columns;
    const Value e = edge_value<T>(op, winner.position, c / group);
    atomicAdd(static_cast<Value*>(op.grad_x) + op.matrix.column(winner.position) * columns + c,
              grad_of_u(op.operands.message, winner.grad, e));
  }
}

/// The same in a fixed order: a thread for each value of grad_x looks through the edges of its row
/// of the transpose.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    gather_by_column(const __grid_constant__ SpmmMinMaxBackward op,
                     const __grid_constant__ CsrMatrix transpose) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.operands.columns, group = op.operands.group();
  const int64_t size = transpose.num_rows * columns;
  for (int64_t index = global_thread(); index < size; index += grid_threads()) {
    const int64_t source = index / columns, c = index % columns;
    Value sum = 0;
    const int64_t end = transpose.end(source);
    for (int64_t k = transpose.begin(source); k < end; ++k) {
      const Winner<T> winner(op, transpose.column(k) * columns + c);
      const int64_t position = transpose.edge(k);
      if (winner.position == position)
        sum += grad_of_u(op.operands.message, winner.grad, edge_value<T>(op, position, c / group));
    }
    static_cast<Value*>(op.grad_x)[index] = sum;
  }
}

/// A thread has all columns of a row that use the same value of an edge: no other thread writes to
/// that value.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_to_edges(const __grid_constant__ SpmmMinMaxBackward op) {
  using Value = AccumulatorOf<T>;
  const int64_t heads = op.operands.e_columns, group = op.operands.group();
  const int64_t size = op.matrix.num_rows * heads;
  const T* x = static_cast<const T*>(op.operands.x);
  for (int64_t index = global_thread(); index < size; index += grid_threads()) {
    const int64_t row = index / heads, head = index % heads;
    for (int64_t c = head * group; c < (head + 1) * group; ++c) {
      const Winner<T> winner(op, row * op.operands.columns + c);
      if (winner.position < 0) continue;
      const int64_t source = op.matrix.column(winner.position);
      const Value u = x == nullptr ? Value{} : Value{widen(x[source * op.operands.columns + c])};
      const Value e = edge_value<T>(op, winner.position, head);
      static_cast<Value*>(op.grad_e)[op.matrix.edge(winner.position) * heads + head] +=
          grad_of_e(op.operands.message, winner.grad, u, e);
    }
  }
}

}  // namespace

void spmm_minmax_backward_cuda(const SpmmMinMaxBackward& op, const CsrMatrix* transpose,
                               const Launch& launch) {
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    if (op.grad_x != nullptr && transpose == nullptr) {
      add_to_columns<T>
          <<<grid_for(op.matrix.num_rows * op.operands.columns), kBlockThreads, 0, stream>>>(op);
      PG_LAUNCH_CHECK("add_to_columns");
    } else if (op.grad_x != nullptr && transpose->num_rows > 0) {
      gather_by_column<T>
          <<<grid_for(transpose->num_rows * op.operands.columns), kBlockThreads, 0, stream>>>(
              op, *transpose);
      PG_LAUNCH_CHECK("gather_by_column");
    }
    if (op.grad_e != nullptr) {
      add_to_edges<T>
          <<<grid_for(op.matrix.num_rows * op.operands.e_columns), kBlockThreads, 0, stream>>>(op);
      PG_LAUNCH_CHECK("add_to_edges");
    }
  });
}

}  // namespace peergraph
