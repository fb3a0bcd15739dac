// How the CPU implementations of this area cut a row of features into vectors, and rows into pieces
// of work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "aggregate/cpu_rows.h"
#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/check.h"
#include "common/element.h"
#include "common/pack.h"
#include "common/parallel.h"
#include "memory/decode_gather.h"

namespace peergraph {

/// The variants of code that are compiled for elements of T. Each width, layout and size takes time
/// to compile, so only the most frequent type has all variants.
template <typename T>
constexpr bool kIsCommon = std::is_same_v<T, float>;
template <typename T>
constexpr int kMostBytes = kIsCommon<T>     ? 64
                           : sizeof(T) == 8 ? 32
                                            : kLeastVectorBytes;

/// Bytes of the narrowest vectors for which there are variants by message and layout.
template <typename T>
constexpr int kLeastKnownBytes = std::min(kMostBytes<T>, kUsualVectorBytes);

/// The number of packs of sums that fit into the vector registers together with a message.
template <typename T, int kBytes>
constexpr int kMaxPacks = !kIsCommon<T>  ? 1
                          : kBytes >= 32 ? 4
                                         : 2;

/// Calls visit(first column, constant packs, constant lanes) for blocks that cover `columns`: of
/// `kPacks` packs of `kLanes`, of one, or of fewer lanes. The last block may overlap the previous
/// one: the columns in both are computed twice, with the same result.
template <int kPacks, int kLanes, typename Visit>
PG_INLINE void each_block(int64_t columns, const Visit& visit) {
  constexpr std::integral_constant<int, 1> kOne{};
  int64_t c = 0;
  if (columns < kLanes) {
    if (columns >= 4)
      for (; c < columns; c += 4)
        visit(std::min(c, columns - 4), kOne, std::integral_constant<int, 4>{});
    for (; c < columns; ++c) visit(c, kOne, kOne);
    return;
  }
  constexpr int64_t kWidth = kPacks * kLanes;
  if constexpr (kPacks > 1) {
    // For the remaining columns: a block costs less than half of its packs one by one.
    const int64_t blocks = columns < kWidth ? 0 : (columns + kWidth / 2 - 1) / kWidth;
    for (int64_t block = 0; block < blocks; ++block, c += kWidth)
      visit(std::min(c, columns - kWidth), std::integral_constant<int, kPacks>{},
            std::integral_constant<int, kLanes>{});
  }
  for (; c < columns; c += kLanes)
    visit(std::min(c, columns - kLanes), kOne, std::integral_constant<int, kLanes>{});
}

/// The mapping of an operand's values to the columns of the result.
enum class Layout { kSame, kRuns, kAny };

/// Values of an operand for runs of columns.
class ColumnRuns {
 public:
  /// Maps `values` values to `columns` columns, a multiple of them; both may be 0.
  ColumnRuns(int64_t columns, int64_t values)
      : group_(columns / std::max<int64_t>(1, values)), value_of_(columns) {
    for (int64_t c = 0; c < columns; ++c) value_of_[c] = static_cast<int32_t>(c / group_);
  }

  /// kRuns: all lanes of a pack of each_block have one value.
  Layout layout(int64_t lanes) const {
    if (group_ == 1) return Layout::kSame;
    const bool is_one = group_ == static_cast<int64_t>(value_of_.size());
    return is_one || group_ % lanes == 0 ? Layout::kRuns : Layout::kAny;
  }
  /// The value of each column.
  const int32_t* values() const { return value_of_.data(); }

 private:
  int64_t group_;
  std::vector<int32_t> value_of_;
};

/// Reads the lanes of a row from column `first` on; `value_of` maps columns to values.
template <Layout kLayout, typename V, int kLanes, int kBytes, typename T>
PG_INLINE void read(const T* row, const int32_t* value_of, int64_t first,
                    WidePack<V, kLanes, kBytes>* pack) {
  if constexpr (kLayout == Layout::kSame) {
    pack->load(row + first);
  } else if constexpr (kLayout == Layout::kRuns) {
    pack->fill(widen(row[value_of[first]]));
  } else {
    V lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = widen(row[value_of[first + i]]);
    pack->load(lanes);
  }
}

/// The number of edges by which rows are prefetched ahead.
constexpr int64_t kAhead = 8;

/// Prefetches the cache lines of `count` elements.
template <typename T>
PG_INLINE void prefetch_row(const T* row, int64_t count) {
  const char* bytes = reinterpret_cast<const char*>(row);
  for (int64_t at = 0; at < count * static_cast<int64_t>(sizeof(T)); at += 64) prefetch(bytes + at);
}

/// Calls body(first row, last row) for pieces of rows with about equally many edges, in at most
/// `num_threads` threads. `columns` is the number of values that are computed for each edge.
void each_piece(const CsrMatrix& rows, int64_t columns, int num_threads,
                FunctionRef<int64_t, int64_t> body);

/// The messages of the edges of some rows, a few packs of columns at a time. A subtraction is
/// computed as the addition of the operand times -1. The code is compiled for kGiven, or for any
/// message if the message is not known; and for rows of x that are stored in fewer bytes (kNarrow).
template <Message kGiven, bool kKnown, Layout kLayout, bool kNarrow, typename T, int kBytes>
class Messages {
 public:
  using Element = T;
  using Value = AccumulatorOf<T>;
  static constexpr bool kCopiesU = kKnown && kGiven == Message::kCopyU;
  static constexpr int kVectorBytes = kBytes;

  /// `last_position`: the last position of the edges to be visited; edges behind it may be padding.
  PG_INLINE Messages(const CsrMatrix& rows, const Operands& operands, const ColumnRuns& runs,
                     int64_t last_position)
      : rows_(rows),
        operands_(operands),
        values_(runs.values()),
        last_position_(last_position),
        message_(operands.message == Message::kSub ? Message::kAdd : operands.message),
        sign_(operands.message == Message::kSub ? -1 : 1) {}

  /// Fills `packs` with the message at `position`, columns from `first` on.
  template <int kPacks, int kLanes>
  PG_INLINE void read(int64_t position, int64_t first,
                      WidePack<Value, kLanes, kBytes> (&packs)[kPacks]) const {
    const Message message = kKnown ? kGiven : message_;
    const int64_t ahead = std::min(position + kAhead, last_position_);
    const T* x = nullptr;
    const T* e = nullptr;
    T decoded[kNarrow ? kPacks * kLanes : 1];
    if constexpr (kNarrow) {
      decode(position, ahead, first, kPacks * kLanes, decoded);
      x = decoded;
    } else if (uses_u(message)) {
      x = row_of<T>(operands_, rows_.column(position)) + first;
      // An address that is only prefetched needs no check, unless it is itself read.
      const int64_t next = operands_.x_rows == nullptr
                               ? load_id(rows_.indices, rows_.index_bytes, ahead)
                               : rows_.column(ahead);
      prefetch_row(row_of<T>(operands_, next) + first, kPacks * kLanes);
    }
    if (uses_e(message)) {
      e = edge(position);
      // Edge tensors in the order of positions are read in order anyway.
      if (rows_.edge_id_bytes != 0) prefetch(edge(ahead) + values_[first]);
    }
    for (int i = 0; i < kPacks; ++i) {
      if (!uses_e(message)) {
        packs[i].load(x + i * kLanes);
        continue;
      }
      WidePack<Value, kLanes, kBytes> other;
      peergraph::read<kLayout>(e, values_, first + i * kLanes, &other);
      if (!uses_u(message)) {
        packs[i] = other;
        continue;
      }
      packs[i].load(x + i * kLanes);
      if (message == Message::kAdd) {
        other.scale(sign_);
        packs[i].add(other);
      } else if (message == Message::kMul) {
        packs[i].multiply(other);
      } else {
        packs[i].divide(other);
      }
    }
  }

 private:
  /// Widens `count` values of the row of x at `position`, and prefetches those at `ahead`.
  PG_INLINE void decode(int64_t position, int64_t ahead, int64_t first, int64_t count,
                        T* out) const {
    const auto row_at = [&](int64_t column) PG_INLINED {
      return reinterpret_cast<const char*>(operands_.x_rows[column]);
    };
    const int64_t bytes = operands_.codec.stored_bytes(), column = rows_.column(position);
    prefetch_row(row_at(rows_.column(ahead)) + first * bytes, count * bytes);
    decode_columns(row_at(column), operands_.scales_of(column), operands_.codec, first, count, out);
  }

  PG_INLINE const T* edge(int64_t position) const {
    return static_cast<const T*>(operands_.e) + rows_.edge(position) * operands_.e_columns;
  }

  const CsrMatrix& rows_;
  const Operands& operands_;
  const int32_t* values_;
  const int64_t last_position_;
  const Message message_;
  const Value sign_;
};

/// Calls body(messages, first row, last row) with Messages for pieces of the rows, in threads and
/// with the instructions of this CPU, in vectors of at most `kMost` bytes.
template <int kMost, typename Body>
void each_piece_of_messages(const CsrMatrix& rows, const Operands& operands, DType dtype,
                            int num_threads, const Body& body) {
  PG_CHECK_ARG(Message::kCopyU <= operands.message && operands.message <= Message::kDiv,
               "message must be 0..5");
  const ColumnRuns runs(operands.columns, operands.e_columns);
  const auto run_rows = [&](auto message, auto is_known, auto layout, auto is_narrow,
                            auto element) {
    using T = decltype(element);
    constexpr int kLeast = decltype(is_known)::value ? kLeastKnownBytes<T> : kLeastVectorBytes;
    each_piece(rows, operands.columns, num_threads, [&](int64_t first, int64_t last) {
      with_vectors<kMostBytes<T>, kLeast>([&](auto bytes) PG_INLINED {
        constexpr int kBytes = std::min<int>(kMost, decltype(bytes)::value);
        const Messages<message, is_known, layout, is_narrow, T, kBytes> messages(
            rows, operands, runs, rows.last_position(last));
        body(messages, first, last);
      });
    });
  };
  constexpr std::integral_constant<Message, Message::kCopyU> kCopyU{};
  constexpr std::integral_constant<Message, Message::kCopyE> kCopyE{};
  constexpr std::integral_constant<Message, Message::kAdd> kAdd{};
  constexpr std::integral_constant<Message, Message::kMul> kMul{};
  constexpr std::integral_constant<Layout, Layout::kSame> kSame{};
  constexpr std::integral_constant<Layout, Layout::kRuns> kRuns{};
  constexpr std::integral_constant<Layout, Layout::kAny> kAny{};
  constexpr std::true_type kKnown{};
  const auto run = [&](auto message, auto is_known, auto layout, auto element) {
    run_rows(message, is_known, layout, std::false_type{}, element);
  };
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    const Message message = operands.message == Message::kSub ? Message::kAdd : operands.message;
    const bool is_usual = vector_bytes() >= kLeastKnownBytes<T>;
    if (operands.is_narrow()) {
      if (message == Message::kCopyU && is_usual)
        return run_rows(kCopyU, kKnown, kSame, std::true_type{}, element);
      return run_rows(kMul, std::false_type{}, kAny, std::true_type{}, element);
    }
    if (message == Message::kCopyU && is_usual) return run(kCopyU, kKnown, kSame, element);
    if constexpr (kIsCommon<T>) {
      const Layout layout = is_usual ? runs.layout(kLanesOf<AccumulatorOf<T>>) : Layout::kAny;
      if (message == Message::kCopyE && is_usual) return run(kCopyE, kKnown, kSame, element);
      if (message == Message::kAdd && layout == Layout::kSame)
        return run(kAdd, kKnown, kSame, element);
      if (message == Message::kMul && layout == Layout::kSame)
        return run(kMul, kKnown, kSame, element);
      if (message == Message::kMul && layout == Layout::kRuns)
        return run(kMul, kKnown, kRuns, element);
    }
    run(kCopyE, std::false_type{}, kAny, element);
  });
}

/// Sum of the products of two rows, in an order that no width of vectors changes: `kLanes` sums at
/// a time, then fewer, then one by one.
template <int kBytes, typename T, typename U>
PG_INLINE AccumulatorOf<T> dot(const T* left, const U* right, int64_t count) {
  using Value = AccumulatorOf<T>;
  constexpr int kLanes = kLanesOf<Value>;
  Value total = 0;
  int64_t c = 0;
  if (count >= kLanes) {
    WidePack<Value, kLanes, kBytes> sums, a, b;
    sums.fill(0);
    for (; c + kLanes <= count; c += kLanes) {
      a.load(left + c);
      b.load(right + c);
      a.multiply(b);
      sums.add(a);
    }
    total = sums.sum();
  }
  for (; c + 4 <= count; c += 4) {
    WidePack<Value, 4, kBytes> a, b;
    a.load(left + c);
    b.load(right + c);
    a.multiply(b);
    total += a.sum();
  }
  for (; c < count; ++c) total += widen(left[c]) * widen(right[c]);
  return total;
}

}  // namespace peergraph
