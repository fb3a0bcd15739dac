// Loops that several CPU implementations of this area use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregate/message.h"
#include "common/element.h"
#include "common/vectors.h"

namespace peergraph {

/// Row `column` of x.
template <typename T>
PG_INLINE const T* row_of(const Operands& operands, int64_t column) {
  if (operands.x_rows != nullptr) return reinterpret_cast<const T*>(operands.x_rows[column]);
  return static_cast<const T*>(operands.x) + column * operands.row_stride();
}

/// The least number of rows for which it pays to start a thread.
inline int64_t row_grain(int64_t rows, int64_t edges, int64_t columns) {
  constexpr int64_t kValuesPerThread = 1 << 16;
  const int64_t values = std::max<int64_t>(1, (edges + rows) * columns);
  return std::max<int64_t>(1, rows * kValuesPerThread / values);
}

}  // namespace peergraph
