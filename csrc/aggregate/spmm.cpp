#include "aggregate/spmm.h"

#include <algorithm>
#include <vector>

#include "aggregate/cpu.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

template <Message kMessage, typename T>
void sum_rows(const Spmm& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.of.columns;
  std::vector<Value> sum(columns);
  T* out = static_cast<T*>(op.out) + first * columns;
  for (int64_t row = first; row < last; ++row, out += columns) {
    std::fill(sum.begin(), sum.end(), Value{});
    const int64_t begin = op.rows.begin(row), end = op.rows.end(row);
    for (int64_t p = begin; p < end; ++p) {
      each_column<kMessage, T>(
          op.of, op.rows.column(p), op.rows.edge(p),
          [&](int64_t c, Value u, Value e) { sum[c] += apply(kMessage, u, e); });
    }
    const Value divisor = op.mean && end > begin ? static_cast<Value>(end - begin) : Value{1};
    for (int64_t c = 0; c < columns; ++c) narrow(sum[c] / divisor, out + c);
  }
}

}  // namespace

void spmm_cpu(const Spmm& op, int num_threads) {
  const Adjacency& rows = op.rows;
  if (rows.num_rows == 0 || op.of.columns == 0) return;
  const int64_t grain = row_grain(rows.num_rows, rows.num_edges, op.of.columns);
  with_dtype(op.dtype, [&](auto element) {
    with_message(op.of.message, [&](auto message) {
      parallel_for(rows.num_rows, grain, num_threads, [&](int64_t first, int64_t last) {
        sum_rows<decltype(message)::value, decltype(element)>(op, first, last);
      });
    });
  });
}

}  // namespace peergraph
