// Graph attention on a GPU: a warp for a destination or a chunk of its edges. Each source's row is
// read once; sums are rescaled when a greater score is found (online softmax).
#include "aggregate/attention.cuh"

namespace peergraph {
namespace {

template <typename T>
struct ForwardOutput {
  T* out;
  AccumulatorOf<T>* lse;
  AccumulatorOf<T>* partial;  // [slots of the queue, columns + 2 * heads]: sums, tops, totals
};

/// How the forward kernel hides the latency of memory. Rows of half precision without dynamic
/// scores are so short that more warps take less time than more rows in flight for each: 3.5
/// instead of 4.3 ms for 7 M edges of 512 columns on an H100.
template <bool kDynamic, typename T, int kItems>
struct InFlight {
  static constexpr bool kManyWarps = !kDynamic && sizeof(T) == 2;
  static constexpr int kEdges = (kItems == 1 ? 4 : 2) / (kManyWarps ? 2 : 1);
  static constexpr int kThreads = kManyWarps ? kMaxRowThreads : kAttentionThreadBound;
  static constexpr int kBlocks = kManyWarps ? 16 : 1;  // on a multiprocessor
};

template <bool kDynamic, typename T, int kVec, int kItems>
__global__ void __launch_bounds__(InFlight<kDynamic, T, kItems>::kThreads,
                                  InFlight<kDynamic, T, kItems>::kBlocks)
    attention_forward(const __grid_constant__ RowWork work,
                      const __grid_constant__ Attention inputs, HeadShape shape,
                      ForwardOutput<T> output) {
  using Value = AccumulatorOf<T>;
  constexpr int kInFlight = InFlight<kDynamic, T, kItems>::kEdges;
  const HeadLanes<Value, kVec, kItems> lane(shape, inputs);
  const Value slope = static_cast<Value>(inputs.slope);
  Value att[kItems][kVec];
  if constexpr (kDynamic) load_att(inputs, lane, att);
  const int64_t size = work.size();
  for (int64_t item = global_warp(); item < size; item += grid_warps()) {
    RowPart part;
    if (!work.find(item, &part)) continue;
    const OtherEnds sources(work.matrix, part, inputs.loops);
    Pack<T, kVec> wide_right[kItems] = {};
    Value right[kItems] = {};
    if constexpr (kDynamic) {
      load_row(inputs.right, part.row, inputs, lane, wide_right);
    } else {
      load_heads(inputs.right, part.row, inputs, lane, right);
    }
    Value top[kItems], total[kItems], sums[kItems][kVec];
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      top[m] = -INFINITY;
      total[m] = 0;
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[m][i] = 0;
    }
    unsigned next = sources.at(lane_id());
    for (int64_t first = 0; first < sources.count(); first += kWarpSize) {
      const int64_t left_over = sources.count() - first;
      const int count = static_cast<int>(left_over < kWarpSize ? left_over : kWarpSize);
      const unsigned own = next;
      next = sources.at(first + kWarpSize + lane_id());
      for (int step = 0; step < count; step += lane.groups * kInFlight) {
        Pack<T, kVec> us[kInFlight][kItems] = {};
        Value scores[kInFlight][kItems] = {};
        bool is_edge[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int edge = step + k * lane.groups + lane.group;
          const unsigned column = __shfl_sync(kFullMask, own, edge % kWarpSize);
          is_edge[k] = edge < count && column != kNoNode;
          if (!is_edge[k]) continue;
          load_row(inputs.x, column, inputs, lane, us[k]);
          if constexpr (!kDynamic) load_heads(inputs.left, column, inputs, lane, scores[k]);
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if constexpr (kDynamic) {
            score_shares<Value>(us[k], wide_right, att, slope, scores[k]);
            lane.sum_heads(scores[k]);
          }
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            if constexpr (!kDynamic) scores[k][m] = leaky(scores[k][m] + right[m], slope);
            if (!is_edge[k]) scores[k][m] = -INFINITY;
          }
        }
#pragma unroll
        for (int m = 0; m < kItems; ++m) {
          Value best = top[m];
#pragma unroll
          for (int k = 0; k < kInFlight; ++k) best = scores[k][m] > best ? scores[k][m] : best;
          // If all scores are NaN or -inf, there is no maximum to subtract.
          const Value base = best == -INFINITY ? Value{0} : best;
          const Value shrunk = exp(top[m] - base);
          total[m] *= shrunk;
#pragma unroll
          for (int i = 0; i < kVec; ++i) sums[m][i] *= shrunk;
#pragma unroll
          for (int k = 0; k < kInFlight; ++k) {
            if (!is_edge[k]) continue;
            const Value weight = exp(scores[k][m] - base);
            total[m] += weight;
#pragma unroll
            for (int i = 0; i < kVec; ++i) sums[m][i] += weight * widen(us[k][m].values[i]);
          }
          top[m] = best;
        }
      }
    }
    // All lanes exchange values before any lane writes: the writes diverge.
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      for (int offset = lane.lanes; offset < kWarpSize; offset *= 2) {
        const Value other_top = __shfl_xor_sync(kFullMask, top[m], offset);
        const Value best = other_top > top[m] ? other_top : top[m];
        const Value base = best == -INFINITY ? Value{0} : best;
        const Value mine = exp(top[m] - base), theirs = exp(other_top - base);
        total[m] = total[m] * mine + __shfl_xor_sync(kFullMask, total[m], offset) * theirs;
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          sums[m][i] = sums[m][i] * mine + __shfl_xor_sync(kFullMask, sums[m][i], offset) * theirs;
        top[m] = best;
      }
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      if (lane.group != 0 || !lane.active[m]) continue;
      if (part.slot < 0) {
        Pack<T, kVec> pack;
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          narrow(total[m] == 0 ? Value{0} : sums[m][i] / total[m], &pack.values[i]);
        store_pack(output.out + part.row * inputs.columns() + lane.columns[m], pack);
        if (lane.leads[m])
          output.lse[part.row * inputs.heads + lane.heads[m]] =
              total[m] == 0 ? Value{0} : top[m] + log(total[m]);
      } else {
        Value* partial = output.partial + part.slot * (inputs.columns() + 2 * inputs.heads);
#pragma unroll
        for (int i = 0; i < kVec; ++i) partial[lane.columns[m] + i] = sums[m][i];
        if (lane.leads[m]) {
          partial[inputs.columns() + lane.heads[m]] = top[m];
          partial[inputs.columns() + inputs.heads + lane.heads[m]] = total[m];
        }
      }
    }
  }
}

/// Combines the chunks of each long row, in their order.
template <typename T>
__global__ void __launch_bounds__(kAttentionThreadBound)
    combine_attention(const __grid_constant__ RowWork work,
                      const __grid_constant__ Attention inputs, ForwardOutput<T> output) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = inputs.columns(), width = columns + 2 * inputs.heads;
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      const int64_t head = c / inputs.depth;
      Value top = -INFINITY, total = 0, sum = 0;
      for (int32_t k = 0; k < chunk.parts; ++k) {
        const Value* partial = output.partial + (slot + k) * width;
        const Value other = partial[columns + head];
        const Value best = other > top ? other : top;
        const Value base = best == -INFINITY ? Value{0} : best;
        const Value mine = exp(top - base), theirs = exp(other - base);
        total = total * mine + partial[columns + inputs.heads + head] * theirs;
        sum = sum * mine + partial[c] * theirs;
        top = best;
      }
      narrow(total == 0 ? Value{0} : sum / total, output.out + chunk.row * columns + c);
      if (c % inputs.depth == 0)
        output.lse[chunk.row * inputs.heads + head] = total == 0 ? Value{0} : top + log(total);
    }
  }
}

template <bool kDynamic, typename T, int kVec, int kItems>
void launch_rows(RowWork work, const Attention& inputs, const ForwardOutput<T>& output,
                 cudaStream_t stream) {
  const Schedule schedule = work.matrix.schedule;
  const HeadShape shape = head_shape<kVec>(inputs);
  attention_forward<kDynamic, T, kVec, kItems>
      <<<blocks_for_items(work.matrix.num_rows, schedule), row_threads(schedule), 0, stream>>>(
          work, inputs, shape, output);
  PG_LAUNCH_CHECK("attention_forward");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = blocks_for_queue(work);
  attention_forward<kDynamic, T, kVec, kItems>
      <<<blocks, row_threads(schedule), 0, stream>>>(work, inputs, shape, output);
  PG_LAUNCH_CHECK("attention_forward of chunks");
  combine_attention<T><<<blocks, row_threads(schedule), 0, stream>>>(work, inputs, output);
  PG_LAUNCH_CHECK("combine_attention");
}

}  // namespace

bool attention_fits_cuda(DType dtype, int64_t heads, int64_t depth) {
  if (heads <= 0 || depth <= 0) return false;
  bool fits = heads_fit<1, kThinItems>(heads, depth);
  with_dtype(dtype, [&](auto element) {
    fits = fits || heads_fit<16 / sizeof(element), kWideItems>(heads, depth);
  });
  return fits;
}

void attention_cuda(const AttentionForward& op, const Launch& launch, const Allocate& allocate) {
  const Attention& inputs = op.inputs;
  if (inputs.matrix.num_rows == 0 || inputs.columns() == 0) return;
  check_columns(inputs.matrix);
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const RowWork work = make_row_work(inputs.matrix, allocate, stream);
  const bool aligned =
      is_aligned(inputs.x) && is_aligned(op.out) && (!inputs.dynamic || is_aligned(inputs.right));
  with_heads(inputs, aligned, [&](auto element, auto tag) {
    using T = decltype(element);
    using Value = AccumulatorOf<T>;
    using Tag = decltype(tag);
    ForwardOutput<T> output{static_cast<T*>(op.out), static_cast<Value*>(op.lse), nullptr};
    const int64_t width = inputs.columns() + 2 * inputs.heads;
    output.partial = allocate_partials<Value>(inputs.matrix, width, allocate);
    inputs.dynamic ? launch_rows<true, T, Tag::kVec, Tag::kItems>(work, inputs, output, stream)
                   : launch_rows<false, T, Tag::kVec, Tag::kItems>(work, inputs, output, stream);
  });
}

}  // namespace peergraph
