// Softmax over the edges of each row on the CPU, and its gradient.
#include "aggregate/edge_softmax.h"

#include <algorithm>
#include <vector>

#include "aggregate/column_blocks.h"
#include "aggregate/softmax.h"

namespace peergraph {
namespace {

template <typename T>
class Rows {
 public:
  using Value = AccumulatorOf<T>;
  explicit Rows(const EdgeSoftmax& op) : op_(op), tops_(op.heads), totals_(op.heads) {}

  template <int kBytes>
  PG_INLINE void forward(int64_t row) {
    const int64_t heads = op_.heads, begin = op_.matrix.begin(row);
    const int64_t end = std::max(begin, op_.matrix.end(row));
    const auto size = static_cast<size_t>((end - begin) * heads);
    if (values_.size() < size) values_.resize(2 * size);
    Value* values = values_.data();
    for (int64_t p = begin; p < end; ++p) {
      const T* scores = static_cast<const T*>(op_.values) + op_.matrix.edge(p) * heads;
      for (int64_t h = 0; h < heads; ++h) values[(p - begin) * heads + h] = widen(scores[h]);
    }
    softmax_by_head<kBytes>(values, end - begin, heads, tops_.data(), totals_.data());
    for (int64_t p = begin; p < end; ++p) {
      T* out = static_cast<T*>(op_.out) + op_.matrix.edge(p) * heads;
      for (int64_t h = 0; h < heads; ++h) narrow(values[(p - begin) * heads + h], out + h);
    }
  }

  PG_INLINE void backward(int64_t row) {
    const int64_t heads = op_.heads, begin = op_.matrix.begin(row), end = op_.matrix.end(row);
    const T* y = static_cast<const T*>(op_.values);
    const T* grad = static_cast<const T*>(op_.grad);
    Value* sums = totals_.data();
    std::fill(sums, sums + heads, Value{0});
    for (int64_t p = begin; p < end; ++p) {
      const int64_t at = op_.matrix.edge(p) * heads;
      for (int64_t h = 0; h < heads; ++h) sums[h] += widen(y[at + h]) * widen(grad[at + h]);
    }
    for (int64_t p = begin; p < end; ++p) {
      const int64_t at = op_.matrix.edge(p) * heads;
      for (int64_t h = 0; h < heads; ++h)
        narrow(widen(y[at + h]) * (widen(grad[at + h]) - sums[h]),
               static_cast<T*>(op_.out) + at + h);
    }
  }

 private:
  const EdgeSoftmax& op_;
  std::vector<Value> values_, tops_, totals_;
};

}  // namespace

void edge_softmax_cpu(const EdgeSoftmax& op, int num_threads) {
  if (op.matrix.num_edges == 0 || op.heads == 0) return;
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    each_piece(op.matrix, 4 * op.heads, num_threads, [&](int64_t first, int64_t last) {
      Rows<T> rows(op);
      with_vectors<kMostBytes<T>>([&](auto bytes) PG_INLINED {
        for (int64_t row = first; row < last; ++row)
          op.grad == nullptr ? rows.template forward<bytes>(row) : rows.backward(row);
      });
    });
  });
}

}  // namespace peergraph
