// Loops that the CPU implementations of this area share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregate/message.h"
#include "common/element.h"

namespace peergraph {

/// Row `column` of x.
template <typename T>
const T* row_of(const Operands& of, int64_t column) {
  if (of.x_rows != nullptr) return reinterpret_cast<const T*>(of.x_rows[column]);
  return static_cast<const T*>(of.x) + column * of.columns;
}

/// Calls visit(c, u, e) for each column of one message, operands widened.
template <Message kMessage, typename T, typename Visit>
void each_column(const Operands& of, int64_t column, int64_t edge, const Visit& visit) {
  using Value = AccumulatorOf<T>;
  const T* x = uses_u(kMessage) ? row_of<T>(of, column) : nullptr;
  const T* e = static_cast<const T*>(of.e) + (uses_e(kMessage) ? edge * of.e_columns : 0);
  if (!uses_e(kMessage) || of.e_columns == of.columns) {
    for (int64_t c = 0; c < of.columns; ++c)
      visit(c, uses_u(kMessage) ? widen(x[c]) : Value{}, uses_e(kMessage) ? widen(e[c]) : Value{});
    return;
  }
  const int64_t group = of.group();
  for (int64_t h = 0; h < of.e_columns; ++h) {
    const Value value = widen(e[h]);
    for (int64_t c = h * group; c < (h + 1) * group; ++c)
      visit(c, uses_u(kMessage) ? widen(x[c]) : Value{}, value);
  }
}

/// Rows a thread should at least have, so that starting it pays.
inline int64_t row_grain(int64_t rows, int64_t edges, int64_t columns) {
  constexpr int64_t kValuesPerThread = 1 << 16;
  const int64_t values = std::max<int64_t>(1, (edges + rows) * columns);
  return std::max<int64_t>(1, rows * kValuesPerThread / values);
}

}  // namespace peergraph
