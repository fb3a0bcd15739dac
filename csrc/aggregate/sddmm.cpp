// g-SDDMM on the CPU: an edge at a time, its values in vectors.
#include "aggregate/sddmm.h"

#include "aggregate/column_blocks.h"
#include "aggregate/cpu_rows.h"

namespace peergraph {
namespace {

/// The rows of an operand, and the value of a row that each column uses.
template <typename T>
class Reader {
 public:
  Reader(const EdgeOperand& operand, int64_t columns_of_op)
      : data_(static_cast<const T*>(operand.data)),
        target_(operand.target),
        columns_(operand.columns),
        runs_(columns_of_op, operand.columns > 0 ? operand.columns : columns_of_op) {}

  PG_INLINE const T* find(int64_t column, int64_t row, int64_t edge) const {
    return data_ + columns_ * (target_ == Target::kColumn ? column
                               : target_ == Target::kRow  ? row
                                                          : edge);
  }
  PG_INLINE bool at_column() const { return target_ == Target::kColumn && data_ != nullptr; }
  bool is_full() const { return runs_.layout(1) == Layout::kSame; }
  PG_INLINE const int32_t* values() const { return runs_.values(); }

 private:
  const T* data_;
  Target target_;
  int64_t columns_;
  ColumnRuns runs_;
};

/// The operands of an op, and a walk over the edges of some rows.
template <typename T>
struct Edges {
  const Sddmm& op;
  Reader<T> left, right;

  explicit Edges(const Sddmm& sddmm)
      : op(sddmm), left(op.left, op.heads * op.depth), right(op.right, op.heads * op.depth) {}

  /// Calls visit(row of left, row of right, edge).
  template <typename Visit>
  PG_INLINE void each(int64_t first, int64_t last, const Visit& visit) const {
    const int64_t last_position = op.matrix.last_position(last), columns = op.heads * op.depth;
    for (int64_t row = first; row < last; ++row) {
      const int64_t end = op.matrix.end(row);
      for (int64_t p = op.matrix.begin(row); p < end; ++p) {
        // Only prefetched, so that it needs no check.
        const int64_t ahead =
            load_id(op.matrix.indices, op.matrix.index_bytes, std::min(p + kAhead, last_position));
        if (left.at_column()) prefetch_row(left.find(ahead, 0, 0), columns);
        if (right.at_column()) prefetch_row(right.find(ahead, 0, 0), columns);
        const int64_t column = op.matrix.column(p), edge = op.matrix.edge(p);
        visit(left.find(column, row, edge), right.find(column, row, edge), edge);
      }
    }
  }
};

/// Messages of a value for each column.
template <Message kMessage, Layout kLayout, typename T, int kBytes>
PG_INLINE void by_column(const Edges<T>& edges, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Value sign = edges.op.message == Message::kSub ? -1 : 1;
  edges.each(first, last, [&](const T* left, const T* right, int64_t edge) PG_INLINED {
    T* out = static_cast<T*>(edges.op.out) + edge * edges.op.heads;
    each_block<1, kLanesOf<Value>>(edges.op.heads,
                                   [&](int64_t column, auto, auto lanes) PG_INLINED {
                                     WidePack<Value, lanes, kBytes> a, b;
                                     read<kLayout>(left, edges.left.values(), column, &a);
                                     if constexpr (kMessage != Message::kCopyU)
                                       read<kLayout>(right, edges.right.values(), column, &b);
                                     if constexpr (kMessage == Message::kAdd) b.scale(sign);
                                     if constexpr (kMessage == Message::kAdd) a.add(b);
                                     if constexpr (kMessage == Message::kMul) a.multiply(b);
                                     if constexpr (kMessage == Message::kDiv) a.divide(b);
                                     a.store(out + column);
                                   });
  });
}

/// Products of rows that are as wide as the op, summed by head.
template <typename T, int kBytes>
PG_INLINE void dots(const Edges<T>& edges, int64_t first, int64_t last) {
  edges.each(first, last, [&](const T* left, const T* right, int64_t edge) PG_INLINED {
    const int64_t heads = edges.op.heads, depth = edges.op.depth;
    for (int64_t head = 0, at = 0; head < heads; ++head, at += depth)
      edges.op.template write<T>(edge * heads + head, dot<kBytes>(left + at, right + at, depth));
  });
}

/// Any other sum of messages.
template <typename T>
void sums(const Edges<T>& edges, int64_t first, int64_t last) {
  const Sddmm& op = edges.op;
  const bool has_left = uses_u(op.message), has_right = uses_e(op.message);
  edges.each(first, last, [&](const T* left, const T* right, int64_t edge) {
    for (int64_t head = 0; head < op.heads; ++head) {
      AccumulatorOf<T> sum = 0;
      for (int64_t c = head * op.depth; c < (head + 1) * op.depth; ++c) {
        const AccumulatorOf<T> u = has_left ? widen(left[edges.left.values()[c]]) : 0;
        const AccumulatorOf<T> e = has_right ? widen(right[edges.right.values()[c]]) : 0;
        sum += apply(op.message, u, e);
      }
      op.template write<T>(edge * op.heads + head, sum);
    }
  });
}

template <Message kMessage, typename T>
void by_column_of(const Edges<T>& edges, bool full, int num_threads) {
  const Sddmm& op = edges.op;
  each_piece(op.matrix, op.heads, num_threads, [&](int64_t first, int64_t last) {
    with_vectors<kMostBytes<T>>([&](auto bytes) PG_INLINED {
      constexpr int kBytes = decltype(bytes)::value;
      if constexpr (kIsCommon<T> || kMessage == Message::kCopyU)
        if (full) return by_column<kMessage, Layout::kSame, T, kBytes>(edges, first, last);
      by_column<kMessage, Layout::kAny, T, kBytes>(edges, first, last);
    });
  });
}

template <typename T>
void sddmm_of(const Sddmm& op, int num_threads) {
  const Edges<T> edges(op);
  const bool full = (!uses_u(op.message) || edges.left.is_full()) &&
                    (!uses_e(op.message) || edges.right.is_full());
  if (op.depth == 1 && op.message != Message::kCopyE && !op.is_wide) {
    switch (op.message) {
      case Message::kCopyU:
        return by_column_of<Message::kCopyU>(edges, full, num_threads);
      case Message::kMul:
        return by_column_of<Message::kMul>(edges, full, num_threads);
      case Message::kDiv:
        return by_column_of<Message::kDiv>(edges, full, num_threads);
      default:
        return by_column_of<Message::kAdd>(edges, full, num_threads);
    }
  }
  const bool is_dot = full && op.message == Message::kMul;
  each_piece(op.matrix, op.heads * op.depth, num_threads, [&](int64_t first, int64_t last) {
    if (!is_dot) return sums(edges, first, last);
    with_vectors<kMostBytes<T>>(
        [&](auto bytes) PG_INLINED { dots<T, decltype(bytes)::value>(edges, first, last); });
  });
}

}  // namespace

void sddmm_cpu(const Sddmm& op, int num_threads) {
  if (op.matrix.num_edges == 0 || op.heads == 0) return;
  with_dtype(op.dtype, [&](auto element) { sddmm_of<decltype(element)>(op, num_threads); });
}

}  // namespace peergraph
