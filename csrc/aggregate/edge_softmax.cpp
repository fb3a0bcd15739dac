#include "aggregate/edge_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aggregate/cpu.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

template <typename T>
class Rows {
 public:
  using Value = AccumulatorOf<T>;
  explicit Rows(const EdgeSoftmax& op) : op_(op) {}

  void forward(int64_t row, int64_t head) const {
    const T* scores = static_cast<const T*>(op_.values);
    const int64_t begin = op_.rows.begin(row), end = op_.rows.end(row);
    Value top = -std::numeric_limits<Value>::infinity(), sum = 0;
    for (int64_t p = begin; p < end; ++p) top = std::max(top, Value{widen(scores[at(p, head)])});
    // A row of -inf alone has no softmax: NaN, as torch gives.
    for (int64_t p = begin; p < end; ++p) sum += std::exp(widen(scores[at(p, head)]) - top);
    for (int64_t p = begin; p < end; ++p)
      write(p, head, std::exp(widen(scores[at(p, head)]) - top) / sum);
  }

  void backward(int64_t row, int64_t head) const {
    const T* y = static_cast<const T*>(op_.values);
    const T* grad = static_cast<const T*>(op_.grad);
    const int64_t begin = op_.rows.begin(row), end = op_.rows.end(row);
    Value sum = 0;
    for (int64_t p = begin; p < end; ++p) sum += widen(y[at(p, head)]) * widen(grad[at(p, head)]);
    for (int64_t p = begin; p < end; ++p)
      write(p, head, widen(y[at(p, head)]) * (widen(grad[at(p, head)]) - sum));
  }

 private:
  int64_t at(int64_t p, int64_t head) const { return op_.rows.edge(p) * op_.heads + head; }
  void write(int64_t p, int64_t head, Value value) const {
    narrow(value, static_cast<T*>(op_.out) + at(p, head));
  }

  const EdgeSoftmax& op_;
};

}  // namespace

void edge_softmax_cpu(const EdgeSoftmax& op, int num_threads) {
  const Adjacency& rows = op.rows;
  if (rows.num_edges == 0 || op.heads == 0) return;
  const int64_t grain = row_grain(rows.num_rows, rows.num_edges, op.heads);
  with_dtype(op.dtype, [&](auto element) {
    const Rows<decltype(element)> work(op);
    parallel_for(rows.num_rows, grain, num_threads, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        for (int64_t head = 0; head < op.heads; ++head)
          op.grad == nullptr ? work.forward(row, head) : work.backward(row, head);
    });
  });
}

}  // namespace peergraph
