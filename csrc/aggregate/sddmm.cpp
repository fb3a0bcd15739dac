#include "aggregate/sddmm.h"

#include "aggregate/cpu.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

template <typename T>
struct Reader {
  const T* data;
  Target target;
  int64_t columns;
  int64_t group;  // columns of the op for each of the operand

  Reader(const EdgeOperand& operand, int64_t columns_of_op)
      : data(static_cast<const T*>(operand.data)),
        target(operand.target),
        columns(operand.columns),
        group(operand.columns > 0 ? columns_of_op / operand.columns : 1) {}

  const T* find(int64_t column, int64_t row, int64_t edge) const {
    return data + columns * (target == Target::kColumn ? column
                             : target == Target::kRow  ? row
                                                       : edge);
  }
};

template <Message kMessage, typename T>
void sddmm_rows(const Sddmm& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Reader<T> left(op.left, op.heads * op.depth), right(op.right, op.heads * op.depth);
  for (int64_t row = first; row < last; ++row) {
    const int64_t end = op.rows.end(row);
    for (int64_t p = op.rows.begin(row); p < end; ++p) {
      const int64_t column = op.rows.column(p), edge = op.rows.edge(p);
      const T* u = uses_u(kMessage) ? left.find(column, row, edge) : nullptr;
      const T* e = uses_e(kMessage) ? right.find(column, row, edge) : nullptr;
      T* out = static_cast<T*>(op.out) + edge * op.heads;
      for (int64_t h = 0; h < op.heads; ++h) {
        Value sum = 0;
        for (int64_t c = h * op.depth; c < (h + 1) * op.depth; ++c) {
          const Value a = uses_u(kMessage) ? Value{widen(u[c / left.group])} : Value{};
          const Value b = uses_e(kMessage) ? Value{widen(e[c / right.group])} : Value{};
          sum += apply(kMessage, a, b);
        }
        narrow(sum, out + h);
      }
    }
  }
}

}  // namespace

void sddmm_cpu(const Sddmm& op, int num_threads) {
  const Adjacency& rows = op.rows;
  if (rows.num_edges == 0 || op.heads == 0) return;
  const int64_t grain = row_grain(rows.num_rows, rows.num_edges, op.heads * op.depth);
  with_dtype(op.dtype, [&](auto element) {
    with_message(op.message, [&](auto message) {
      parallel_for(rows.num_rows, grain, num_threads, [&](int64_t first, int64_t last) {
        sddmm_rows<decltype(message)::value, decltype(element)>(op, first, last);
      });
    });
  });
}

}  // namespace peergraph
