#include "aggregate/spmm_transposed.h"

#include <algorithm>

#include "aggregate/cpu_rows.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

/// Threads split the columns of features: no two write to one place, and sums keep their order.
template <Message kMessage, typename T>
void spread_columns(const Spread& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Operands& of = op.of;
  const T* x = static_cast<const T*>(of.x);
  const T* e = static_cast<const T*>(of.e);
  const int64_t group = of.group();
  for (int64_t row = 0; row < op.rows.num_rows; ++row) {
    const int64_t end = op.rows.end(row);
    for (int64_t p = op.rows.begin(row); p < end; ++p) {
      Value* out = static_cast<Value*>(op.out) + op.rows.column(p) * of.columns;
      const T* edge = uses_e(kMessage) ? e + op.rows.edge(p) * of.e_columns : nullptr;
      for (int64_t c = first; c < last; ++c) {
        const Value u = uses_u(kMessage) ? widen(x[row * of.columns + c]) : Value{};
        out[c] += apply(kMessage, u, uses_e(kMessage) ? widen(edge[c / group]) : Value{});
      }
    }
  }
}

}  // namespace

void spread_cpu(const Spread& op, int num_threads) {
  if (op.rows.num_edges == 0 || op.of.columns == 0) return;
  const int64_t grain = row_grain(op.of.columns, 0, op.rows.num_edges);
  with_dtype(op.dtype, [&](auto element) {
    with_message(op.of.message, [&](auto message) {
      const auto walk = [&](int64_t first, int64_t last) {
        spread_columns<decltype(message)::value, decltype(element)>(op, first, last);
      };
      parallel_for(op.of.columns, grain, num_threads, walk, torch_team());
    });
  });
}

}  // namespace peergraph
