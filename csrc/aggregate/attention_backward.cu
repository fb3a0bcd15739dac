// Gradients of graph attention on a GPU. A warp walks the edges of a destination, or of a source in
// the transpose, and computes each edge's weight again from what the forward kept for its
// destination.
#include "aggregate/atomic_add.cuh"
#include "aggregate/attention.cuh"

namespace peergraph {
namespace {

/// Which ends of edges a warp walks.
enum class By { kDestination, kSource };

/// What an edge's gradient needs of its source.
template <typename T, int kVec, int kItems>
struct SourceEnd {
  Pack<T, kVec> x[kItems];
  AccumulatorOf<T> left[kItems];

  template <bool kDynamic, typename Lanes>
  __device__ __forceinline__ void load(const AttentionGrad& op, int64_t node, const Lanes& at) {
    load_row(op.of.x, node, op.of, at, x);
    if constexpr (!kDynamic) load_heads(op.of.left, node, op.of, at, left);
  }
};

/// What it needs of its destination.
template <typename T, int kVec, int kItems>
struct DestinationEnd {
  Pack<T, kVec> grad[kItems];
  Pack<T, kVec> wide_right[kItems];
  AccumulatorOf<T> right[kItems];
  AccumulatorOf<T> lse[kItems];
  AccumulatorOf<T> delta[kItems];

  template <bool kDynamic, typename Lanes>
  __device__ __forceinline__ void load(const AttentionGrad& op, int64_t node, const Lanes& at) {
    load_row(op.grad, node, op.of, at, grad);
    load_heads(op.lse, node, op.of, at, lse);
    load_heads(op.delta, node, op.of, at, delta);
    if constexpr (kDynamic) {
      load_row(op.of.right, node, op.of, at, wide_right);
    } else {
      load_heads(op.of.right, node, op.of, at, right);
    }
  }
};

template <typename Value>
struct GradOutput {
  Value* x;
  Value* left;
  Value* right;
  Value* att;
  /// [slots of the queue, width]: what the node's gradients are for each chunk.
  Value* partial;
  int64_t width;
};

template <By kBy, bool kDynamic, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kRowThreads)
    attention_grad(const __grid_constant__ RowWork work, const __grid_constant__ AttentionGrad op,
                   HeadShape shape, GradOutput<AccumulatorOf<T>> to) {
  using Value = AccumulatorOf<T>;
  using Source = SourceEnd<T, kVec, kItems>;
  using Destination = DestinationEnd<T, kVec, kItems>;
  constexpr bool kBySource = kBy == By::kSource;
  constexpr int kInFlight = kItems == 1 && !(kBySource && kDynamic) ? 4 : 2;
  const Attention& of = op.of;
  const HeadLanes<Value, kVec, kItems> at(shape, of);
  const Value slope = static_cast<Value>(of.slope);
  Value att[kItems][kVec];
  if constexpr (kDynamic) load_att(of, at, att);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    Part part;
    if (!work.find(item, &part)) continue;
    const OtherEnds others(work.rows, part, of.loops);
    Source source = {};
    Destination destination = {};
    if constexpr (kBySource) {
      source.template load<kDynamic>(op, part.row, at);
    } else {
      destination.template load<kDynamic>(op, part.row, at);
    }
    // Of the node that the warp is at: rows of features, and a number for each head. By source:
    // grad_x and grad_left; by destination: grad_right, or grad_right and grad_att.
    Value wide[kItems][kVec], wide_att[kItems][kVec], narrow_sum[kItems];
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      narrow_sum[m] = 0;
#pragma unroll
      for (int i = 0; i < kVec; ++i) wide[m][i] = wide_att[m][i] = 0;
    }
    unsigned next = others.at(lane_id());
    for (int64_t first = 0; first < others.count(); first += kWarpSize) {
      const int64_t left_over = others.count() - first;
      const int count = static_cast<int>(left_over < kWarpSize ? left_over : kWarpSize);
      const unsigned own = next;
      next = others.at(first + kWarpSize + lane_id());
      for (int step = 0; step < count; step += at.groups * kInFlight) {
        typename std::conditional<kBySource, Destination, Source>::type there[kInFlight];
        unsigned nodes[kInFlight];
        bool is_edge[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int edge = step + k * at.groups + at.group;
          nodes[k] = __shfl_sync(kFullMask, own, edge % kWarpSize);
          is_edge[k] = edge < count && nodes[k] != kNoNode;
          there[k] = {};
          if (is_edge[k]) there[k].template load<kDynamic>(op, nodes[k], at);
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if constexpr (kBySource) {
            destination = there[k];
          } else {
            source = there[k];
          }
          Value scores[kItems], dots[kItems], sums[kItems];
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            dots[m] = 0;
#pragma unroll
            for (int i = 0; i < kVec; ++i)
              dots[m] += widen(destination.grad[m].values[i]) * widen(source.x[m].values[i]);
          }
          at.sum_heads(dots);
          if constexpr (kDynamic) {
            score_shares<Value>(source.x, destination.wide_right, att, slope, scores);
            at.sum_heads(scores);
          }
          const unsigned node = nodes[k];
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            if constexpr (!kDynamic) {
              sums[m] = source.left[m] + destination.right[m];
              scores[m] = leaky(sums[m], slope);
            }
            if (!is_edge[k] || !at.on[m]) continue;
            const Value alpha = exp(scores[m] - destination.lse[m]);
            const Value of_score = alpha * (dots[m] - destination.delta[m]);
            Value of_sum = 0;
            if constexpr (!kDynamic) {
              of_sum = of_score * (sums[m] > 0 ? Value{1} : slope);
              narrow_sum[m] += of_sum;
            }
            Pack<Value, kVec> to_source;
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
              Value here = 0;
              if constexpr (kDynamic) {
                const Value sum =
                    widen(source.x[m].values[i]) + widen(destination.wide_right[m].values[i]);
                here = of_score * att[m][i] * (sum > 0 ? Value{1} : slope);
                if constexpr (!kBySource) {
                  wide[m][i] += here;
                  wide_att[m][i] += of_score * leaky(sum, slope);
                }
              }
              to_source.values[i] = alpha * widen(destination.grad[m].values[i]) + here;
              if constexpr (kBySource) wide[m][i] += to_source.values[i];
            }
            if constexpr (kBySource) {
              if (!kDynamic && to.right != nullptr && at.leads[m])
                atomicAdd(to.right + node * of.heads + at.heads[m], of_sum);
            } else if (to.x != nullptr) {
              add_pack<kVec>(to.x + node * of.columns() + at.columns[m], to_source);
              if (!kDynamic && at.leads[m])
                atomicAdd(to.left + node * of.heads + at.heads[m], of_sum);
            }
          }
        }
      }
    }
    // All lanes exchange before any writes: between writes the warp would not be together.
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      narrow_sum[m] = at.over_groups(narrow_sum[m]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if constexpr (kBySource || kDynamic) wide[m][i] = at.over_groups(wide[m][i]);
        if constexpr (!kBySource && kDynamic) wide_att[m][i] = at.over_groups(wide_att[m][i]);
      }
    }
    __syncwarp();
    // A partial result has the same parts behind each other.
    const bool whole = part.slot < 0;
    Value* partial = whole ? nullptr : to.partial + part.slot * to.width;
    constexpr bool kWide = kBySource || kDynamic;
    Value* wide_to = kBySource ? to.x : to.right;
    Value* narrow_to = kBySource ? to.left : to.right;
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (at.group != 0 || !at.on[m]) continue;
      const int64_t place = part.row * of.columns() + at.columns[m];
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if constexpr (kWide) (whole ? wide_to + place : partial + at.columns[m])[i] = wide[m][i];
        if constexpr (!kBySource && kDynamic)
          (whole ? to.att + place : partial + of.columns() + at.columns[m])[i] = wide_att[m][i];
      }
      if (!kDynamic && narrow_to != nullptr && at.leads[m]) {
        Value* at_head =
            whole ? narrow_to + part.row * of.heads : partial + (kWide ? of.columns() : int64_t{0});
        at_head[at.heads[m]] = narrow_sum[m];
      }
    }
  }
}

/// Adds up the chunks of each long row, in their order.
template <By kBy, bool kDynamic, typename Value>
__global__ void __launch_bounds__(kRowThreads)
    combine_grad(const __grid_constant__ RowWork work, int64_t columns, int64_t heads,
                 GradOutput<Value> to) {
  constexpr bool kBySource = kBy == By::kSource;
  const int64_t wide = kBySource || kDynamic ? columns : 0;
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    for (int64_t c = lane_id(); c < to.width; c += kWarpSize) {
      Value sum = 0;
      for (int32_t k = 0; k < chunk.parts; ++k) sum += to.partial[(slot + k) * to.width + c];
      if (c < wide) {
        (kBySource ? to.x : to.right)[chunk.row * columns + c] = sum;
      } else if (kDynamic) {
        to.att[chunk.row * columns + c - wide] = sum;
      } else if ((kBySource ? to.left : to.right) != nullptr) {
        (kBySource ? to.left : to.right)[chunk.row * heads + c - wide] = sum;
      }
    }
  }
}

template <By kBy, bool kDynamic, typename T, int kVec, int kItems>
void launch(RowWork work, const AttentionGrad& op, GradOutput<AccumulatorOf<T>> to,
            const Allocate& allocate, cudaStream_t stream) {
  using Value = AccumulatorOf<T>;
  const Attention& of = op.of;
  const HeadShape shape = head_shape<kVec>(of);
  constexpr bool kBySource = kBy == By::kSource;
  to.width = (kBySource || kDynamic ? of.columns() : 0) + (!kDynamic   ? of.heads
                                                           : kBySource ? 0
                                                                       : of.columns());
  if (work.queue.capacity > 0)
    to.partial = static_cast<Value*>(
        allocate(work.queue.capacity * to.width * static_cast<int64_t>(sizeof(Value))));
  attention_grad<kBy, kDynamic, T, kVec, kItems>
      <<<blocks_for_items(work.rows.num_rows), kRowThreads, 0, stream>>>(work, op, shape, to);
  PG_LAUNCH_CHECK("attention_grad");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work.queue);
  attention_grad<kBy, kDynamic, T, kVec, kItems>
      <<<blocks, kRowThreads, 0, stream>>>(work, op, shape, to);
  PG_LAUNCH_CHECK("attention_grad of chunks");
  combine_grad<kBy, kDynamic, Value>
      <<<blocks, kRowThreads, 0, stream>>>(work, of.columns(), of.heads, to);
  PG_LAUNCH_CHECK("combine_grad");
}

template <By kBy>
void dispatch(const AttentionGrad& op, const CsrMatrix& rows, int64_t max_chunks,
              const Allocate& allocate, int device, uintptr_t stream_address) {
  const Attention& of = op.of;
  if (rows.num_rows == 0 || of.columns() == 0) return;
  check_columns(rows);
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  RowWork work;
  work.rows = rows;
  work.queue = make_queue(max_chunks, allocate, stream);
  const bool aligned = is_aligned(of.x) && is_aligned(op.grad) && is_aligned(op.grad_x) &&
                       (!of.dynamic || (is_aligned(of.right) && is_aligned(op.grad_right)));
  with_heads(of, aligned, [&](auto element, auto tag) {
    using T = decltype(element);
    using Value = AccumulatorOf<T>;
    using Tag = decltype(tag);
    const GradOutput<Value> to{static_cast<Value*>(op.grad_x),
                               static_cast<Value*>(op.grad_left),
                               static_cast<Value*>(op.grad_right),
                               static_cast<Value*>(op.grad_att),
                               nullptr,
                               0};
    of.dynamic ? launch<kBy, true, T, Tag::kVec, Tag::kItems>(work, op, to, allocate, stream)
               : launch<kBy, false, T, Tag::kVec, Tag::kItems>(work, op, to, allocate, stream);
  });
}

}  // namespace

void attention_to_rows_cuda(const AttentionGrad& op, int64_t max_chunks, const Allocate& allocate,
                            int device, uintptr_t stream) {
  dispatch<By::kDestination>(op, op.of.rows, max_chunks, allocate, device, stream);
}

void attention_to_columns_cuda(const AttentionGrad& op, const CsrMatrix& transpose,
                               int64_t max_chunks, const Allocate& allocate, int device,
                               uintptr_t stream) {
  dispatch<By::kSource>(op, transpose, max_chunks, allocate, device, stream);
}

}  // namespace peergraph
