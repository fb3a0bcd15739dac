#include "aggregate/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "aggregate/cpu.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

template <typename Value>
Value leaky(Value value, Value slope) {
  return value > 0 ? value : slope * value;
}

/// One head of one edge: its score, and where its numbers are.
template <typename T>
class Edge {
 public:
  using Value = AccumulatorOf<T>;

  Edge(const Attention& of, int64_t row, int64_t column, int64_t head)
      : of_(of), row_(row), column_(column), head_(head) {}

  const T* x() const { return wide<T>(of_.x, column_); }
  const T* right() const { return wide<T>(of_.right, row_); }
  const Value* att() const { return static_cast<const Value*>(of_.att) + head_ * of_.depth; }
  Value slope() const { return static_cast<Value>(of_.slope); }

  /// What leaky_relu is taken of, where scores are not dynamic.
  Value sum() const {
    const Value left = narrow_at(of_.left, column_);
    return of_.right == nullptr ? left : left + narrow_at(of_.right, row_);
  }
  /// As sum(), for column d of the head, where they are.
  Value sum(int64_t d) const { return widen(x()[d]) + widen(right()[d]); }

  Value score() const {
    if (!of_.dynamic) return leaky(sum(), slope());
    Value score = 0;
    for (int64_t d = 0; d < of_.depth; ++d) score += att()[d] * leaky(sum(d), slope());
    return score;
  }

  Value narrow_at(const void* values, int64_t node) const {
    return static_cast<const Value*>(values)[node * of_.heads + head_];
  }
  template <typename V>
  const V* wide(const void* values, int64_t node) const {
    return static_cast<const V*>(values) + node * of_.columns() + head_ * of_.depth;
  }

 private:
  const Attention& of_;
  int64_t row_, column_, head_;
};

/// Calls visit(other end) for the edges of `node` in `rows`, its self loop included.
template <typename Visit>
void each_edge(const Adjacency& rows, int64_t loops, int64_t node, const Visit& visit) {
  const int64_t begin = rows.begin(node), end = rows.end(node);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t other = rows.column(p);
    if (loops < 0 || other != node) visit(other);
  }
  if (node < loops) visit(node);
}

template <typename T>
void forward_row(const AttentionForward& op, int64_t row, int64_t head,
                 std::vector<AccumulatorOf<T>>* sums) {
  using Value = AccumulatorOf<T>;
  const Attention& of = op.of;
  Value top = -std::numeric_limits<Value>::infinity(), total = 0;
  each_edge(of.rows, of.loops, row, [&](int64_t column) {
    const Value score = Edge<T>(of, row, column, head).score();
    top = score > top || score != score ? score : top;
  });
  std::fill(sums->begin(), sums->end(), Value{});
  each_edge(of.rows, of.loops, row, [&](int64_t column) {
    const Edge<T> edge(of, row, column, head);
    const Value weight = std::exp(edge.score() - top);
    total += weight;
    for (int64_t d = 0; d < of.depth; ++d) (*sums)[d] += weight * widen(edge.x()[d]);
  });
  T* out = static_cast<T*>(op.out) + row * of.columns() + head * of.depth;
  for (int64_t d = 0; d < of.depth; ++d)
    narrow(total == 0 ? Value{0} : (*sums)[d] / total, out + d);
  static_cast<Value*>(op.lse)[row * of.heads + head] =
      total == 0 ? Value{0} : top + std::log(total);
}

/// Weight of an edge, and the gradient of its score.
template <typename T>
struct EdgeGrad {
  using Value = AccumulatorOf<T>;
  Value alpha;
  Value score;

  EdgeGrad(const AttentionGrad& op, const Edge<T>& edge, int64_t row) {
    alpha = std::exp(edge.score() - edge.narrow_at(op.lse, row));
    const T* grad = edge.template wide<T>(op.grad, row);
    Value dot = 0;
    for (int64_t d = 0; d < op.of.depth; ++d) dot += widen(grad[d]) * widen(edge.x()[d]);
    score = alpha * (dot - edge.narrow_at(op.delta, row));
  }
};

template <typename Value>
Value slope_at(Value sum, Value slope) {
  return sum > 0 ? Value{1} : slope;
}

template <typename T>
void grad_of_row(const AttentionGrad& op, int64_t row, int64_t head) {
  using Value = AccumulatorOf<T>;
  const Attention& of = op.of;
  const int64_t at = row * of.columns() + head * of.depth;
  Value* right = static_cast<Value*>(op.grad_right) + (of.dynamic ? at : row * of.heads + head);
  Value* att = of.dynamic ? static_cast<Value*>(op.grad_att) + at : nullptr;
  std::fill(right, right + (of.dynamic ? of.depth : 1), Value{});
  if (of.dynamic) std::fill(att, att + of.depth, Value{});
  each_edge(of.rows, of.loops, row, [&](int64_t column) {
    const Edge<T> edge(of, row, column, head);
    const EdgeGrad<T> grad(op, edge, row);
    if (!of.dynamic) {
      *right += grad.score * slope_at(edge.sum(), edge.slope());
      return;
    }
    for (int64_t d = 0; d < of.depth; ++d) {
      const Value sum = edge.sum(d);
      right[d] += grad.score * edge.att()[d] * slope_at(sum, edge.slope());
      att[d] += grad.score * leaky(sum, edge.slope());
    }
  });
}

template <typename T>
void grad_of_column(const AttentionGrad& op, const Adjacency& transpose, int64_t column,
                    int64_t head) {
  using Value = AccumulatorOf<T>;
  const Attention& of = op.of;
  Value* x = static_cast<Value*>(op.grad_x) + column * of.columns() + head * of.depth;
  std::fill(x, x + of.depth, Value{});
  Value left = 0;
  each_edge(transpose, of.loops, column, [&](int64_t row) {
    const Edge<T> edge(of, row, column, head);
    const EdgeGrad<T> grad(op, edge, row);
    const T* given = edge.template wide<T>(op.grad, row);
    for (int64_t d = 0; d < of.depth; ++d) {
      x[d] += grad.alpha * widen(given[d]);
      if (of.dynamic) x[d] += grad.score * edge.att()[d] * slope_at(edge.sum(d), edge.slope());
    }
    if (!of.dynamic) left += grad.score * slope_at(edge.sum(), edge.slope());
  });
  if (!of.dynamic) static_cast<Value*>(op.grad_left)[column * of.heads + head] = left;
}

/// Calls body(T{}, node, head) for all nodes and heads.
template <typename Body>
void each_head(const Attention& of, int64_t nodes, int num_threads, const Body& body) {
  const int64_t grain = row_grain(nodes, of.rows.num_edges, of.columns());
  with_dtype(of.dtype, [&](auto element) {
    parallel_for(nodes, grain, num_threads, [&](int64_t first, int64_t last) {
      for (int64_t node = first; node < last; ++node)
        for (int64_t head = 0; head < of.heads; ++head) body(element, node, head);
    });
  });
}

}  // namespace

void attention_cpu(const AttentionForward& op, int num_threads) {
  each_head(op.of, op.of.rows.num_rows, num_threads, [&](auto element, int64_t row, int64_t head) {
    using T = decltype(element);
    std::vector<AccumulatorOf<T>> sums(op.of.depth);
    forward_row<T>(op, row, head, &sums);
  });
}

void attention_to_rows_cpu(const AttentionGrad& op, int num_threads) {
  each_head(op.of, op.of.rows.num_rows, num_threads, [&](auto element, int64_t row, int64_t head) {
    grad_of_row<decltype(element)>(op, row, head);
  });
}

void attention_to_columns_cpu(const AttentionGrad& op, const Adjacency& transpose,
                              int num_threads) {
  each_head(op.of, transpose.num_rows, num_threads,
            [&](auto element, int64_t column, int64_t head) {
              grad_of_column<decltype(element)>(op, transpose, column, head);
            });
}

}  // namespace peergraph
