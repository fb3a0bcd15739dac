// Sums from rows to columns on the CPU: each thread takes some columns of the features.
#include "aggregate/spmm_transposed.h"

#include <algorithm>

#include "aggregate/cpu_rows.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

/// Each thread takes some columns of the features: no two threads write to the same element, and
/// the order of sums is fixed.
template <Message kMessage, typename T>
void scatter_add_columns(const SpmmTransposed& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Operands& operands = op.operands;
  const T* x = static_cast<const T*>(operands.x);
  const T* e = static_cast<const T*>(operands.e);
  const int64_t group = operands.group();
  for (int64_t row = 0; row < op.matrix.num_rows; ++row) {
    const int64_t end = op.matrix.end(row);
    for (int64_t p = op.matrix.begin(row); p < end; ++p) {
      Value* out = static_cast<Value*>(op.out) + op.matrix.column(p) * operands.columns;
      const T* edge = uses_e(kMessage) ? e + op.matrix.edge(p) * operands.e_columns : nullptr;
      for (int64_t c = first; c < last; ++c) {
        const Value u = uses_u(kMessage) ? widen(x[row * operands.columns + c]) : Value{};
        out[c] += apply(kMessage, u, uses_e(kMessage) ? widen(edge[c / group]) : Value{});
      }
    }
  }
}

}  // namespace

void spmm_transposed_cpu(const SpmmTransposed& op, int num_threads) {
  if (op.matrix.num_edges == 0 || op.operands.columns == 0) return;
  const int64_t grain = row_grain(op.operands.columns, 0, op.matrix.num_edges);
  with_dtype(op.dtype, [&](auto element) {
    with_message(op.operands.message, [&](auto message) {
      const auto walk = [&](int64_t first, int64_t last) {
        scatter_add_columns<decltype(message)::value, decltype(element)>(op, first, last);
      };
      parallel_for(op.operands.columns, grain, num_threads, walk, torch_team());
    });
  });
}

}  // namespace peergraph
