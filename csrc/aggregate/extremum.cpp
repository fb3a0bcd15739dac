#include "aggregate/extremum.h"

#include <vector>

#include "aggregate/cpu.h"
#include "aggregate/order.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

template <Message kMessage, typename T>
void extremum_rows(const Extremum& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const int64_t columns = op.of.columns;
  std::vector<Best<Value>> best(columns);
  for (int64_t row = first; row < last; ++row) {
    best.assign(columns, Best<Value>{});
    const int64_t end = op.rows.end(row);
    for (int64_t p = op.rows.begin(row); p < end; ++p) {
      each_column<kMessage, T>(op.of, op.rows.column(p), op.rows.edge(p),
                               [&](int64_t c, Value u, Value e) {
                                 best[c].offer({apply(kMessage, u, e), p}, op.minimum);
                               });
    }
    for (int64_t c = 0; c < columns; ++c) {
      narrow(best[c].value, static_cast<T*>(op.out) + row * columns + c);
      store_id(op.arg, op.arg_bytes, row * columns + c, best[c].position);
    }
  }
}

/// Threads split the values of an edge, each with its group of columns: no two write to one place.
template <typename T>
void grad_groups(const ExtremumGrad& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Operands& of = op.of;
  const int64_t group = of.group();
  const T* x = static_cast<const T*>(of.x);
  const T* e = static_cast<const T*>(of.e);
  Value* grad_x = static_cast<Value*>(op.grad_x);
  Value* grad_e = static_cast<Value*>(op.grad_e);
  for (int64_t row = 0; row < op.rows.num_rows; ++row) {
    for (int64_t c = first * group; c < last * group; ++c) {
      const int64_t at = row * of.columns + c;
      const int64_t position = load_id(op.arg, op.arg_bytes, at);
      if (position < 0) continue;
      const Value grad = widen(static_cast<const T*>(op.grad)[at]);
      const int64_t column = op.rows.column(position) * of.columns + c;
      const int64_t edge = op.rows.edge(position) * of.e_columns + c / group;
      const Value weight = e == nullptr ? Value{1} : Value{widen(e[edge])};
      if (grad_x != nullptr) grad_x[column] += grad_of_u(of.message, grad, weight);
      if (grad_e != nullptr) {
        const Value u = x == nullptr ? Value{} : Value{widen(x[column])};
        grad_e[edge] += grad_of_e(of.message, grad, u, weight);
      }
    }
  }
}

}  // namespace

void extremum_cpu(const Extremum& op, int num_threads) {
  const Adjacency& rows = op.rows;
  if (rows.num_rows == 0 || op.of.columns == 0) return;
  const int64_t grain = row_grain(rows.num_rows, rows.num_edges, op.of.columns);
  with_dtype(op.dtype, [&](auto element) {
    with_message(op.of.message, [&](auto message) {
      parallel_for(rows.num_rows, grain, num_threads, [&](int64_t first, int64_t last) {
        extremum_rows<decltype(message)::value, decltype(element)>(op, first, last);
      });
    });
  });
}

void extremum_grad_cpu(const ExtremumGrad& op, int num_threads) {
  if (op.of.columns == 0) return;
  const int64_t groups = op.of.e_columns;
  const int64_t grain = row_grain(groups, 0, op.rows.num_rows * op.of.group());
  with_dtype(op.dtype, [&](auto element) {
    parallel_for(groups, grain, num_threads, [&](int64_t first, int64_t last) {
      grad_groups<decltype(element)>(op, first, last);
    });
  });
}

}  // namespace peergraph
