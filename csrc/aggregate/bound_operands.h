// Operands of messages as Python gave them: bindings compare their dtypes and sizes with those of
// the operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/check.h"
#include "common/tensor_ref.h"

namespace peergraph {

/// The rows of a tensor of `columns` elements each, of `dtype`.
inline int64_t rows_of(const TensorRef& tensor, const char* name, DType dtype, int64_t columns) {
  const int64_t rows = tensor.size(0);
  tensor.values(name, dtype, checked_product(rows, columns));
  return rows;
}

/// The matrix in an operation whose edge tensors have `rows` rows at least.
inline CsrMatrix with_edge_rows(const CsrMatrix& matrix, int64_t rows) {
  PG_CHECK_ARG(matrix.edge_id_bytes != 0 || matrix.num_edges <= rows,
               "there are " + std::to_string(matrix.num_edges) + " edges, but " +
                   std::to_string(rows) + " rows of edge tensors");
  CsrMatrix result = matrix;
  result.num_edge_rows = std::min(matrix.num_edge_rows, rows);
  return result;
}

struct BoundOperands {
  Operands operands;
  std::optional<TensorRef> x, e;         // no x where the rows have addresses
  std::optional<int64_t> num_addresses;  // of rows, and of their scales

  const Operands& operator*() const { return operands; }

  /// Raises ValueError unless there are `rows` rows of x, of `dtype`.
  void check_x(int64_t rows, DType dtype) const {
    if (num_addresses) {
      PG_CHECK_ARG(!operands.is_narrow() || operands.codec.dtype == dtype,
                   "the operation must have the codec's dtype");
      PG_CHECK_ARG(*num_addresses >= rows, "addresses must have one for each of " +
                                               std::to_string(rows) + " rows, got " +
                                               std::to_string(*num_addresses));
      return;
    }
    PG_CHECK_ARG(x.has_value(), "the message needs x");
    const int64_t num_rows = rows_of(*x, "x", dtype, operands.columns);
    PG_CHECK_ARG(num_rows >= rows,
                 "x must have " + std::to_string(rows) + " rows, got " + std::to_string(num_rows));
  }

  /// Raises ValueError unless there is a row of e for each edge, of `dtype`. Returns the matrix
  /// whose edge ids are bounded by these rows.
  CsrMatrix with_e(const CsrMatrix& matrix, DType dtype) const {
    PG_CHECK_ARG(e.has_value(), "the message needs e");
    return with_edge_rows(matrix, rows_of(*e, "e", dtype, operands.e_columns));
  }

  /// Checks what the message uses, with a row of x for each of `x_rows`.
  CsrMatrix checked(const CsrMatrix& matrix, int64_t x_rows, DType dtype) const {
    if (operands.columns == 0) return matrix;  // nothing is read
    if (uses_u(operands.message)) check_x(x_rows, dtype);
    return uses_e(operands.message) ? with_e(matrix, dtype) : matrix;
  }
};

}  // namespace peergraph
