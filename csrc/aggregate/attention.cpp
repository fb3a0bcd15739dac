// Graph attention and its gradients on the CPU: each thread takes some nodes, and scores and sums
// the edges of a node at once.
#include "aggregate/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "aggregate/column_blocks.h"
#include "aggregate/softmax.h"

namespace peergraph {
namespace {

/// leaky_relu of each lane and its slope there, without comparisons: GCC compiles comparisons of
/// 512 bits lane by lane.
template <typename V, int kLanes, int kBytes>
PG_INLINE void leaky(const WidePack<V, kLanes, kBytes>& sum, V slope,
                     WidePack<V, kLanes, kBytes>* value, WidePack<V, kLanes, kBytes>* slopes) {
  using Values = WidePack<V, kLanes, kBytes>;
  using Bits = typename Values::template PartOf<IntegerOf<V>>;
  using Unsigned = typename Values::template PartOf<std::make_unsigned_t<IntegerOf<V>>>;
  Values one, low;
  one.fill(1);
  low.fill(slope);
  for (int i = 0; i < Values::kParts; ++i) {
    Unsigned bits, ones, lows, chosen;
    std::memcpy(&bits, &sum.part[i], sizeof(bits));
    // All bits of a lane where the sum is 0 or less.
    const Bits negative = (Bits)(bits | (bits - 1)) >> (8 * static_cast<int>(sizeof(V)) - 1);
    std::memcpy(&ones, &one.part[i], sizeof(ones));
    std::memcpy(&lows, &low.part[i], sizeof(lows));
    chosen = ((Unsigned)negative & lows) | (~(Unsigned)negative & ones);
    std::memcpy(&slopes->part[i], &chosen, sizeof(chosen));
    value->part[i] = sum.part[i] * slopes->part[i];
  }
}

template <typename V>
PG_INLINE V slope_at(V sum, V slope) {
  return sum > 0 ? V{1} : slope;
}

/// A thread's work space for the edges of one node; all heads of an edge are adjacent.
template <typename Value>
struct Scratch {
  std::vector<int64_t> others;  // by edge: the other end
  std::vector<Value> sums;      // arguments of leaky_relu, if scores are not dynamic
  std::vector<Value> weights;   // scores, then softmax
  std::vector<Value> grads;     // of scores
  std::vector<Value> tops;      // by head
};

/// The edges of one node: the edges to a destination (kToRow), or from a source.
template <typename T, int kBytes, bool kToRow>
class Edges {
 public:
  using Value = AccumulatorOf<T>;

  PG_INLINE Edges(const Attention& inputs, const ColumnRuns& heads, Scratch<Value>* scratch)
      : inputs_(inputs),
        heads_(heads),
        slope_(static_cast<Value>(inputs.slope)),
        scratch_(*scratch) {}

  /// Collects the edges of `node` in `rows`, its self loop included, and their scores.
  PG_INLINE void collect(const CsrMatrix& rows, int64_t node) {
    node_ = node;
    att_ = inputs_.template att_of<Value>(kToRow ? inputs_.row_cuts : inputs_.column_cuts, node);
    const int64_t begin = rows.begin(node), end = std::max(begin, rows.end(node));
    auto& others = scratch_.others;
    if (static_cast<int64_t>(others.size()) <= end - begin) others.resize(2 * (end - begin) + 1);
    count_ = 0;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t other = rows.column(p);
      if (inputs_.loops < 0 || other != node) others[count_++] = other;
    }
    if (node < inputs_.loops) others[count_++] = node;
    const auto size = static_cast<size_t>(count_ * inputs_.heads);
    for (auto* values : {&scratch_.sums, &scratch_.weights, &scratch_.grads})
      if (values->size() < size) values->resize(2 * size);
    if (inputs_.dynamic)
      score_dynamic();
    else
      score_static();
  }

  /// Replaces scores by their softmax over the edges; writes the log of the sum of exp(score) of
  /// each head to `lse`.
  PG_INLINE void softmax(Value* lse) {
    auto& tops = scratch_.tops;
    tops.resize(inputs_.heads);
    softmax_by_head<kBytes>(scratch_.weights.data(), count_, inputs_.heads, tops.data(), lse);
    for (int64_t h = 0; h < inputs_.heads; ++h)
      lse[h] = count_ == 0 ? Value{0} : tops[h] + std::log(lse[h]);
  }

  /// Replaces scores by their softmax, and computes the gradients of the scores.
  PG_INLINE void differentiate(const AttentionBackward& op) {
    const int64_t heads = inputs_.heads, depth = inputs_.depth;
    Value* weights = scratch_.weights.data();
    Value* grads = scratch_.grads.data();
    const auto* lse = static_cast<const Value*>(op.lse);
    const auto* delta = static_cast<const Value*>(op.delta);
    for (int64_t k = 0; k < count_; ++k) {
      ask(op.grad, k + kAhead, !kToRow);
      for (int64_t h = 0; h < heads; ++h) {
        weights[k * heads + h] -= lse[row(k) * heads + h];
        const int64_t at = h * depth;
        grads[k * heads + h] =
            dot<kBytes>(wide(op.grad, row(k)) + at, wide(inputs_.x, column(k)) + at, depth);
      }
    }
    exp_all<kBytes>(weights, count_ * heads);
    for (int64_t k = 0; k < count_; ++k) {
      for (int64_t h = 0; h < heads; ++h) {
        Value& grad = grads[k * heads + h];
        grad = weights[k * heads + h] * (grad - delta[row(k) * heads + h]);
      }
    }
  }

  /// Computes the gradient of left or right, by head, if scores are not dynamic.
  PG_INLINE void sum_narrow(Value* out) const {
    const int64_t heads = inputs_.heads;
    std::fill(out, out + heads, Value{0});
    for (int64_t k = 0; k < count_; ++k) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = k * heads + h;
        out[h] += scratch_.grads[at] * slope_at(scratch_.sums[at], slope_);
      }
    }
  }

  /// For all columns: calls add(edge, first column, weight, grad, sums) for each edge, with the
  /// weight and the gradient of the columns, then finish(first column, sums).
  template <int kSums, typename Add, typename Finish>
  PG_INLINE void sum_wide(const Add& add, const Finish& finish) const {
    if (heads_.layout(kLanesOf<Value>) == Layout::kRuns)
      sum_wide_of<kSums, Layout::kRuns>(add, finish);
    else
      sum_wide_of<kSums, Layout::kAny>(add, finish);
  }

  PG_INLINE int64_t row(int64_t k) const { return kToRow ? node_ : scratch_.others[k]; }
  PG_INLINE int64_t column(int64_t k) const { return kToRow ? scratch_.others[k] : node_; }
  PG_INLINE const T* wide(const void* values, int64_t node) const {
    return static_cast<const T*>(values) + node * inputs_.columns();
  }
  /// The argument of leaky_relu: x of the source plus `right` of the destination.
  template <int kLanes>
  PG_INLINE void add_ends(int64_t k, int64_t first, WidePack<Value, kLanes, kBytes>* sum) const {
    WidePack<Value, kLanes, kBytes> right;
    sum->load(wide(inputs_.x, column(k)) + first);
    right.load(wide(inputs_.right, row(k)) + first);
    sum->add(right);
  }
  PG_INLINE Value slope() const { return slope_; }
  /// The vector of the node's edges, if scores are dynamic.
  PG_INLINE const Value* att() const { return att_; }

 private:
  /// Prefetches the row of a later edge.
  PG_INLINE void ask(const void* values, int64_t k, bool of_rows) const {
    if (k >= count_) return;
    prefetch_row(wide(of_rows ? values : inputs_.x, scratch_.others[k]), inputs_.columns());
  }

  PG_INLINE void score_static() {
    const int64_t heads = inputs_.heads;
    const auto* left = static_cast<const Value*>(inputs_.left);
    const auto* right = static_cast<const Value*>(inputs_.right);
    for (int64_t k = 0; k < count_; ++k) {
      for (int64_t h = 0; h < heads; ++h) {
        const Value sum =
            left[column(k) * heads + h] + (right == nullptr ? Value{0} : right[row(k) * heads + h]);
        scratch_.sums[k * heads + h] = sum;
        scratch_.weights[k * heads + h] = sum * slope_at(sum, slope_);
      }
    }
  }

  PG_INLINE void score_dynamic() {
    const int64_t heads = inputs_.heads, depth = inputs_.depth;
    for (int64_t k = 0; k < count_; ++k) {
      ask(inputs_.right, k + kAhead, !kToRow);
      for (int64_t h = 0; h < heads; ++h) {
        Value score = 0;
        int64_t d = 0;
        for (; d + kLanesOf<Value> <= depth; d += kLanesOf<Value>)
          score += score_of<kLanesOf<Value>>(k, h * depth + d);
        for (; d + 4 <= depth; d += 4) score += score_of<4>(k, h * depth + d);
        for (; d < depth; ++d) score += score_of<1>(k, h * depth + d);
        scratch_.weights[k * heads + h] = score;
      }
    }
  }

  template <int kLanes>
  PG_INLINE Value score_of(int64_t k, int64_t first) const {
    WidePack<Value, kLanes, kBytes> sum, value, slopes, att;
    add_ends(k, first, &sum);
    leaky(sum, slope_, &value, &slopes);
    att.load(att_ + first);
    value.multiply(att);
    return value.sum();
  }

  template <int kSums, Layout kLayout, typename Add, typename Finish>
  PG_INLINE void sum_wide_of(const Add& add, const Finish& finish) const {
    each_block<1, kLanesOf<Value>>(inputs_.columns(), [&](int64_t first, auto,
                                                          auto lanes) PG_INLINED {
      using Values = WidePack<Value, lanes, kBytes>;
      Values sums[kSums], weight, grad;
      for (int i = 0; i < kSums; ++i) sums[i].fill(0);
      for (int64_t k = 0; k < count_; ++k) {
        read<kLayout>(scratch_.weights.data() + k * inputs_.heads, heads_.values(), first, &weight);
        read<kLayout>(scratch_.grads.data() + k * inputs_.heads, heads_.values(), first, &grad);
        add(k, first, weight, grad, sums);
      }
      finish(first, sums);
    });
  }

  const Attention& inputs_;
  const ColumnRuns& heads_;
  const Value slope_;
  Scratch<Value>& scratch_;
  int64_t node_ = 0, count_ = 0;
  const Value* att_ = nullptr;
};

/// Calls body(edges, node) for all rows of `rows`, in threads and with the vectors of this CPU.
template <bool kToRow, typename Body>
void each_node(const Attention& inputs, const CsrMatrix& rows, int num_threads, const Body& body) {
  if (rows.num_rows == 0 || inputs.columns() == 0) return;
  const ColumnRuns heads(inputs.columns(), inputs.heads);
  with_dtype(inputs.dtype, [&](auto element) {
    using T = decltype(element);
    each_piece(rows, 2 * inputs.columns(), num_threads, [&](int64_t first, int64_t last) {
      Scratch<AccumulatorOf<T>> scratch;
      with_vectors<kMostBytes<T>>([&](auto bytes) PG_INLINED {
        Edges<T, decltype(bytes)::value, kToRow> edges(inputs, heads, &scratch);
        for (int64_t node = first; node < last; ++node) {
          edges.collect(rows, node);
          body(edges, node, element);
        }
      });
    });
  });
}

template <typename T, typename Walk>
PG_INLINE void forward_row(const AttentionForward& op, Walk& edges, int64_t row) {
  using Value = AccumulatorOf<T>;
  edges.softmax(static_cast<Value*>(op.lse) + row * op.inputs.heads);
  T* out = static_cast<T*>(op.out) + row * op.inputs.columns();
  edges.template sum_wide<1>(
      [&](int64_t k, int64_t first, auto& weight, auto&, auto& sums) PG_INLINED {
        std::decay_t<decltype(weight)> x;
        x.load(edges.wide(op.inputs.x, edges.column(k)) + first);
        x.multiply(weight);
        sums[0].add(x);
      },
      [&](int64_t first, auto& sums) PG_INLINED { sums[0].store(out + first); });
}

template <typename T, typename Walk>
PG_INLINE void grad_of_row(const AttentionBackward& op, Walk& edges, int64_t row) {
  using Value = AccumulatorOf<T>;
  const Attention& inputs = op.inputs;
  edges.differentiate(op);
  if (!inputs.dynamic)
    return edges.sum_narrow(static_cast<Value*>(op.grad_right) + row * inputs.heads);
  Value* right = static_cast<Value*>(op.grad_right) + row * inputs.columns();
  Value* att = static_cast<Value*>(op.grad_att) + row * inputs.columns();
  edges.template sum_wide<2>(
      [&](int64_t k, int64_t first, auto&, auto& grad, auto& sums) PG_INLINED {
        std::decay_t<decltype(grad)> sum, value, slopes;
        edges.add_ends(k, first, &sum);
        leaky(sum, edges.slope(), &value, &slopes);
        slopes.multiply(grad);
        sums[0].add(slopes);
        value.multiply(grad);
        sums[1].add(value);
      },
      [&](int64_t first, auto& sums) PG_INLINED {
        std::decay_t<decltype(sums[0])> factor;
        factor.load(edges.att() + first);
        sums[0].multiply(factor);
        sums[0].store(right + first);
        sums[1].store(att + first);
      });
}

template <typename T, typename Walk>
PG_INLINE void grad_of_column(const AttentionBackward& op, Walk& edges, int64_t column) {
  using Value = AccumulatorOf<T>;
  const Attention& inputs = op.inputs;
  edges.differentiate(op);
  if (!inputs.dynamic) edges.sum_narrow(static_cast<Value*>(op.grad_left) + column * inputs.heads);
  T* out = static_cast<T*>(op.grad_x) + column * inputs.columns();
  edges.template sum_wide<2>(
      [&](int64_t k, int64_t first, auto& weight, auto& grad, auto& sums) PG_INLINED {
        std::decay_t<decltype(grad)> weighted, sum, value, slopes;
        weighted.load(edges.wide(op.grad, edges.row(k)) + first);
        weighted.multiply(weight);
        sums[0].add(weighted);
        if (!inputs.dynamic) return;
        edges.add_ends(k, first, &sum);
        leaky(sum, edges.slope(), &value, &slopes);
        slopes.multiply(grad);
        sums[1].add(slopes);
      },
      [&](int64_t first, auto& sums) PG_INLINED {
        if (inputs.dynamic) {
          std::decay_t<decltype(sums[0])> factor;
          factor.load(edges.att() + first);
          sums[1].multiply(factor);
          sums[0].add(sums[1]);
        }
        sums[0].store(out + first);
      });
}

}  // namespace

void attention_cpu(const AttentionForward& op, int num_threads) {
  each_node<true>(op.inputs, op.inputs.matrix, num_threads,
                  [&](auto& edges, int64_t row, auto element)
                      PG_INLINED { forward_row<decltype(element)>(op, edges, row); });
}

void attention_backward_rows_cpu(const AttentionBackward& op, int num_threads) {
  each_node<true>(op.inputs, op.inputs.matrix, num_threads,
                  [&](auto& edges, int64_t row, auto element)
                      PG_INLINED { grad_of_row<decltype(element)>(op, edges, row); });
}

void attention_backward_columns_cpu(const AttentionBackward& op, const CsrMatrix& transpose,
                                    int num_threads) {
  each_node<false>(op.inputs, transpose, num_threads,
                   [&](auto& edges, int64_t column, auto element)
                       PG_INLINED { grad_of_column<decltype(element)>(op, edges, column); });
}

}  // namespace peergraph
