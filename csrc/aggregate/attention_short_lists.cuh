// Gradients of sources of which most have one or two edges, as in mini-batches. A warp walks the
// edges of several adjacent sources as one list: a warp for each source would spend most of its
// time on finding that source's list.
#pragma once

#include "aggregate/attention_gradient.cuh"

namespace peergraph {
namespace {

/// Sources have at most this many edges on average where they share a warp.
constexpr int64_t kShortList = 4;

/// Blocks of two warps on a multiprocessor: the registers that they leave to a thread hold the rows
/// of one edge.
constexpr int kShortListBlocks = 10;

/// The columns of a row, as many as kItems vectors of all lanes of a warp have.
template <typename T, int kVec, int kItems>
struct WholeRow {
  using Value = AccumulatorOf<T>;

  int32_t heads;         // of a row
  int32_t head[kItems];  // of this lane's items
  bool leads[kItems];    // whether the item is the first of its head
  static constexpr int64_t kColumns = int64_t{kWarpSize} * kVec * kItems;

  __device__ __forceinline__ explicit WholeRow(const Attention& inputs)
      : heads(static_cast<int32_t>(inputs.heads)) {
    const auto depth = static_cast<int32_t>(inputs.depth);
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      const int32_t column = (m * kWarpSize + lane_id()) * kVec;
      head[m] = column / depth;
      leads[m] = column == head[m] * depth;
    }
  }

  __device__ __forceinline__ static void load(const void* rows, int64_t node,
                                              Pack<T, kVec> (&out)[kItems]) {
    const T* row = static_cast<const T*>(rows) + node * kColumns + lane_id() * kVec;
#pragma unroll
    for (int m = 0; m < kItems; ++m) out[m] = load_pack<T, kVec>(row + m * kWarpSize * kVec);
  }

  /// A node's number for each head, this lane's share; 0 where there are none.
  __device__ __forceinline__ void load_heads(const void* values, int64_t node,
                                             Value (&out)[kItems]) const {
    const Value* row = static_cast<const Value*>(values) + node * heads;
#pragma unroll
    for (int m = 0; m < kItems; ++m) out[m] = values == nullptr ? Value{0} : row[head[m]];
  }
};

/// The sums of one source. A source without edges gets zeros.
template <typename T, int kVec, int kItems>
struct SourceSums {
  using Value = AccumulatorOf<T>;

  Value x[kItems][kVec] = {};
  Value left[kItems] = {};

  /// Writes the sums of source `node`, and begins anew.
  __device__ __forceinline__ void write(const WholeRow<T, kVec, kItems>& row,
                                        const GradOutputOf<By::kSource, T>& output, int64_t node) {
    T* const out = output.x + node * row.kColumns + lane_id() * kVec;
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      Pack<T, kVec> pack;
#pragma unroll
      for (int i = 0; i < kVec; ++i) narrow(x[m][i], &pack.values[i]);
      store_pack(out + m * kWarpSize * kVec, pack);
      if (output.left != nullptr && row.leads[m])
        output.left[node * row.heads + row.head[m]] = left[m];
    }
    *this = {};
  }
};

template <typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kMaxRowThreads, kShortListBlocks)
    attention_backward_short_lists(const __grid_constant__ RowWork work,
                                   const __grid_constant__ AttentionBackward op, HeadShape shape,
                                   GradOutputOf<By::kSource, T> output) {
  using Value = AccumulatorOf<T>;
  const Attention& inputs = op.inputs;
  const WholeRow<T, kVec, kItems> row(inputs);
  const Value slope = static_cast<Value>(inputs.slope);
  const HeadWidth width(shape.per_head, kWarpSize);
  const int64_t runs = work.num_runs();
  for (int64_t item = global_warp(); item < runs; item += grid_warps()) {
    const RowRun run = work.run(item);
    // Long lists have been queued; each sequence of lists between them is walked.
    for (unsigned left = run.left; left != 0;) {
      const int first = __ffs(left) - 1;
      const unsigned others = ~(left >> first);
      const int size = others == 0 ? kWarpSize : __ffs(others) - 1;
      const unsigned lists = (size == kWarpSize ? kFullMask : (1u << size) - 1) << first;
      left &= ~lists;
      const uint32_t end = __shfl_sync(kFullMask, run.span.end, first + size - 1);
      SourceSums<T, kVec, kItems> sums;
      Pack<T, kVec> x[kItems];
      Value of_source[kItems];
      int at = first, loaded = -1;  // the list whose sums these are, and whose row was read
      for (uint32_t window = __shfl_sync(kFullMask, run.span.begin, first); window < end;
           window += kWarpSize) {
        const uint32_t mine = window + lane_id();
        const auto own =
            mine < end ? static_cast<unsigned>(work.matrix.column(run.first_edge + mine)) : 0u;
        const int count = static_cast<int>(min(end - window, static_cast<uint32_t>(kWarpSize)));
        for (int edge = 0; edge < count; ++edge) {
          const int64_t node = __shfl_sync(kFullMask, own, edge);
          // The lists that end at or before the edge come before its own.
          const unsigned before =
              __ballot_sync(kFullMask, run.span.end <= window + static_cast<uint32_t>(edge));
          const int list = first + __popc(before & lists);
          Pack<T, kVec> grad[kItems];
          Value right[kItems], lse[kItems], delta[kItems];
          row.load(op.grad, node, grad);
          row.load_heads(inputs.right, node, right);
          row.load_heads(op.lse, node, lse);
          row.load_heads(op.delta, node, delta);
          if (list != loaded) {
            row.load(inputs.x, run.first_row + list, x);
            row.load_heads(inputs.left, run.first_row + list, of_source);
            loaded = list;
            for (; at < list; ++at) sums.write(row, output, run.first_row + at);
          }
          Value dots[kItems];
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            dots[m] = 0;
#pragma unroll
            for (int i = 0; i < kVec; ++i)
              dots[m] += widen(grad[m].values[i]) * widen(x[m].values[i]);
          }
          sum_of_heads(dots, width);
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            const Value sum = of_source[m] + right[m];
            const Value alpha = exp(leaky(sum, slope) - lse[m]);
            const Value of_sum = alpha * (dots[m] - delta[m]) * (sum > 0 ? Value{1} : slope);
            sums.left[m] += of_sum;
#pragma unroll
            for (int i = 0; i < kVec; ++i) sums.x[m][i] += alpha * widen(grad[m].values[i]);
            if (output.right != nullptr && row.leads[m])
              atomicAdd(output.right + node * row.heads + row.head[m], of_sum);
          }
        }
      }
      for (; at < first + size; ++at) sums.write(row, output, run.first_row + at);
    }
  }
}

/// Whether sources share warps: if a row is as long as the vectors of a warp.
template <int kVec, int kItems>
bool has_short_lists(const CsrMatrix& matrix, const Attention& inputs) {
  return inputs.columns() == int64_t{kWarpSize} * kVec * kItems && inputs.loops < 0 &&
         matrix.num_edges <= kShortList * matrix.num_rows && matrix.num_edges < int64_t{1} << 32;
}

template <typename T, int kVec, int kItems>
void launch_short_lists(RowWork work, const AttentionBackward& op, const HeadShape& shape,
                        const GradOutputOf<By::kSource, T>& output, cudaStream_t stream) {
  work.rows_per_run = rows_of_run(work.matrix);
  const Schedule& schedule = work.matrix.schedule;
  const int64_t runs = (work.matrix.num_rows + work.rows_per_run - 1) / work.rows_per_run;
  attention_backward_short_lists<T, kVec, kItems>
      <<<blocks_for_items(runs, schedule), row_threads(schedule), 0, stream>>>(work, op, shape,
                                                                               output);
  PG_LAUNCH_CHECK("attention_backward_short_lists");
}

}  // namespace
}  // namespace peergraph
