// Gradients of graph attention on a GPU. A warp walks the edges of a destination, or of a source in
// the transpose, and computes each edge's weight again from the values that the forward pass stored
// for the destination.
#include "aggregate/atomic_add.cuh"
#include "aggregate/attention_gradient.cuh"
#include "aggregate/attention_short_lists.cuh"

namespace peergraph {
namespace {

template <By kBy, bool kDynamic, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(kAttentionThreadBound)
    attention_backward(const __grid_constant__ RowWork work,
                       const __grid_constant__ AttentionBackward op, HeadShape shape,
                       GradOutputOf<kBy, T> output) {
  using Value = AccumulatorOf<T>;
  using Source = SourceEnd<T, kVec, kItems>;
  using Destination = DestinationEnd<T, kVec, kItems>;
  constexpr bool kBySource = kBy == By::kSource;
  constexpr int kInFlight = kItems == 1 && !(kBySource && kDynamic) ? 4 : 2;
  const Attention& inputs = op.inputs;
  const HeadLanes<Value, kVec, kItems> lane(shape, inputs);
  const Value slope = static_cast<Value>(inputs.slope);
  Value att[kItems][kVec];
  if constexpr (kDynamic) load_att(inputs, lane, att);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    RowPart part;
    if (!work.find(item, &part)) continue;
    const OtherEnds others(work.matrix, part, inputs.loops);
    Source source = {};
    Destination destination = {};
    if constexpr (kBySource) {
      source.template load<kDynamic>(op, part.row, lane);
    } else {
      destination.template load<kDynamic>(op, part.row, lane);
    }
    // The gradients of the warp's current node: rows of features, and a number for each head. By
    // source: grad_x and grad_left; by destination: grad_right, or grad_right and grad_att.
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
      for (int step = 0; step < count; step += lane.groups * kInFlight) {
        typename std::conditional<kBySource, Destination, Source>::type there[kInFlight];
        unsigned nodes[kInFlight];
        bool is_edge[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int edge = step + k * lane.groups + lane.group;
          nodes[k] = __shfl_sync(kFullMask, own, edge % kWarpSize);
          is_edge[k] = edge < count && nodes[k] != kNoNode;
          there[k] = {};
          if (is_edge[k]) there[k].template load<kDynamic>(op, nodes[k], lane);
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
          lane.sum_heads(dots);
          if constexpr (kDynamic) {
            score_shares<Value>(source.x, destination.wide_right, att, slope, scores);
            lane.sum_heads(scores);
          }
          const unsigned node = nodes[k];
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            if constexpr (!kDynamic) {
              sums[m] = source.left[m] + destination.right[m];
              scores[m] = leaky(sums[m], slope);
            }
            if (!is_edge[k] || !lane.active[m]) continue;
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
              if (!kDynamic && output.right != nullptr && lane.leads[m])
                atomicAdd(output.right + node * inputs.heads + lane.heads[m], of_sum);
            } else if (output.x != nullptr) {
              add_pack<kVec>(output.x + node * inputs.columns() + lane.columns[m], to_source);
              if (!kDynamic && lane.leads[m])
                atomicAdd(output.left + node * inputs.heads + lane.heads[m], of_sum);
            }
          }
        }
      }
    }
    // All lanes exchange values before any lane writes: the writes diverge.
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      narrow_sum[m] = lane.over_groups(narrow_sum[m]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if constexpr (kBySource || kDynamic) wide[m][i] = lane.over_groups(wide[m][i]);
        if constexpr (!kBySource && kDynamic) wide_att[m][i] = lane.over_groups(wide_att[m][i]);
      }
    }
    __syncwarp();
    // A partial result has the same parts one after the other.
    const bool whole = part.slot < 0;
    Value* partial = whole ? nullptr : output.partial + part.slot * output.width;
    constexpr bool kWide = kBySource || kDynamic;
    Value* narrow_to = kBySource ? output.left : output.right;
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (lane.group != 0 || !lane.active[m]) continue;
      const int64_t place = part.row * inputs.columns() + lane.columns[m];
      if constexpr (kBySource) {
        if (whole) {
          Pack<T, kVec> pack;
#pragma unroll
          for (int i = 0; i < kVec; ++i) narrow(wide[m][i], &pack.values[i]);
          store_pack(output.x + place, pack);
        }
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if constexpr (kBySource) {
          if (!whole) partial[lane.columns[m] + i] = wide[m][i];
        } else if constexpr (kDynamic) {
          (whole ? output.right + place : partial + lane.columns[m])[i] = wide[m][i];
        }
        if constexpr (!kBySource && kDynamic)
          (whole ? output.att + place : partial + inputs.columns() + lane.columns[m])[i] =
              wide_att[m][i];
      }
      if (!kDynamic && narrow_to != nullptr && lane.leads[m]) {
        Value* at_head = whole ? narrow_to + part.row * inputs.heads
                               : partial + (kWide ? inputs.columns() : int64_t{0});
        at_head[lane.heads[m]] = narrow_sum[m];
      }
    }
  }
}

/// Adds up the chunks of each long row, in their order.
template <By kBy, bool kDynamic, typename T>
__global__ void __launch_bounds__(kAttentionThreadBound)
    combine_attention_backward(const __grid_constant__ RowWork work, int64_t columns, int64_t heads,
                               GradOutputOf<kBy, T> output) {
  using Value = AccumulatorOf<T>;
  constexpr bool kBySource = kBy == By::kSource;
  const int64_t wide = kBySource || kDynamic ? columns : 0;
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    for (int64_t c = lane_id(); c < output.width; c += kWarpSize) {
      Value sum = 0;
      for (int32_t k = 0; k < chunk.parts; ++k)
        sum += output.partial[(slot + k) * output.width + c];
      if (c < wide) {
        const int64_t place = chunk.row * columns + c;
        if constexpr (kBySource) {
          narrow(sum, output.x + place);
        } else {
          output.right[place] = sum;
        }
      } else if (kDynamic) {
        output.att[chunk.row * columns + c - wide] = sum;
      } else if ((kBySource ? output.left : output.right) != nullptr) {
        (kBySource ? output.left : output.right)[chunk.row * heads + c - wide] = sum;
      }
    }
  }
}

template <By kBy, bool kDynamic, typename T, int kVec, int kItems>
void launch_rows(RowWork work, const AttentionBackward& op, GradOutputOf<kBy, T> output,
                 const Allocate& allocate, cudaStream_t stream) {
  const Schedule schedule = work.matrix.schedule;
  using Value = AccumulatorOf<T>;
  const Attention& inputs = op.inputs;
  const HeadShape shape = head_shape<kVec>(inputs);
  constexpr bool kBySource = kBy == By::kSource;
  output.width = (kBySource || kDynamic ? inputs.columns() : 0) + (!kDynamic   ? inputs.heads
                                                                   : kBySource ? 0
                                                                               : inputs.columns());
  output.partial = allocate_partials<Value>(work.matrix, output.width, allocate);
  const auto launch_all = [&](const RowWork& work) {
    attention_backward<kBy, kDynamic, T, kVec, kItems>
        <<<blocks_for_items(work.matrix.num_rows, schedule), row_threads(schedule), 0, stream>>>(
            work, op, shape, output);
    PG_LAUNCH_CHECK("attention_backward");
  };
  if constexpr (kBySource && !kDynamic) {
    if (has_short_lists<kVec, kItems>(work.matrix, inputs)) {
      launch_short_lists<T, kVec, kItems>(work, op, shape, output, stream);
    } else {
      launch_all(work);
    }
  } else {
    launch_all(work);
  }
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work);
  attention_backward<kBy, kDynamic, T, kVec, kItems>
      <<<blocks, row_threads(schedule), 0, stream>>>(work, op, shape, output);
  PG_LAUNCH_CHECK("attention_backward of chunks");
  combine_attention_backward<kBy, kDynamic, T>
      <<<blocks, row_threads(schedule), 0, stream>>>(work, inputs.columns(), inputs.heads, output);
  PG_LAUNCH_CHECK("combine_attention_backward");
}

template <By kBy>
void dispatch(const AttentionBackward& op, const CsrMatrix& matrix, const Launch& launch,
              const Allocate& allocate) {
  const Attention& inputs = op.inputs;
  if (matrix.num_rows == 0 || inputs.columns() == 0) return;
  check_columns(matrix);
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const RowWork work = make_row_work(matrix, allocate, stream);
  const bool aligned = is_aligned(inputs.x) && is_aligned(op.grad) && is_aligned(op.grad_x) &&
                       (!inputs.dynamic || (is_aligned(inputs.right) && is_aligned(op.grad_right)));
  with_heads(inputs, aligned, [&](auto element, auto tag) {
    using T = decltype(element);
    using Value = AccumulatorOf<T>;
    using Tag = decltype(tag);
    using Output = GradOutputOf<kBy, T>;
    const Output output{static_cast<decltype(Output::x)>(op.grad_x),
                        static_cast<Value*>(op.grad_left),
                        static_cast<Value*>(op.grad_right),
                        static_cast<Value*>(op.grad_att),
                        nullptr,
                        0};
    inputs.dynamic
        ? launch_rows<kBy, true, T, Tag::kVec, Tag::kItems>(work, op, output, allocate, stream)
        : launch_rows<kBy, false, T, Tag::kVec, Tag::kItems>(work, op, output, allocate, stream);
  });
}

}  // namespace

void attention_backward_rows_cuda(const AttentionBackward& op, const Launch& launch,
                                  const Allocate& allocate) {
  dispatch<By::kDestination>(op, op.inputs.matrix, launch, allocate);
}

void attention_backward_columns_cuda(const AttentionBackward& op, const CsrMatrix& transpose,
                                     const Launch& launch, const Allocate& allocate) {
  dispatch<By::kSource>(op, transpose, launch, allocate);
}

}  // namespace peergraph
