#include "aggregate/spmm.h"

#include "aggregate/column_blocks.h"

namespace peergraph {
namespace {

/// Sums the messages of a row, as many columns at a time as the vector registers hold.
template <typename T, int kPacks, int kLanes, int kBytes, typename Messages>
PG_INLINE void sum_row(const Spmm& op, const Messages& messages, int64_t row, int64_t first) {
  using Sums = WidePack<AccumulatorOf<T>, kLanes, kBytes>;
  const int64_t begin = op.rows.begin(row), end = op.rows.end(row);
  Sums sums[kPacks], message[kPacks], count;
  for (int i = 0; i < kPacks; ++i) sums[i].fill(0);
  for (int64_t p = begin; p < end; ++p) {
    messages.read(p, first, message);
    for (int i = 0; i < kPacks; ++i) sums[i].add(message[i]);
  }
  count.fill(static_cast<AccumulatorOf<T>>(op.mean && end > begin ? end - begin : 1));
  T* out = static_cast<T*>(op.out) + row * op.of.columns + first;
  for (int i = 0; i < kPacks; ++i) {
    sums[i].divide(count);
    sums[i].store(out + i * kLanes);
  }
}

}  // namespace

void spmm_cpu(const Spmm& op, int num_threads) {
  if (op.rows.num_rows == 0 || op.of.columns == 0) return;
  each_piece_of_messages<64>(op.rows, op.of, op.dtype, num_threads,
                             [&](const auto& messages, int64_t first, int64_t last) PG_INLINED {
                               using Given = std::decay_t<decltype(messages)>;
                               using T = typename Given::Element;
                               constexpr int kBytes = Given::kVectorBytes;
                               for (int64_t row = first; row < last; ++row) {
                                 each_block<kMaxPacks<T, kBytes>, kLanesOf<AccumulatorOf<T>>>(
                                     op.of.columns,
                                     [&](int64_t column, auto packs, auto lanes) PG_INLINED {
                                       sum_row<T, packs, lanes, kBytes>(op, messages, row, column);
                                     });
                               }
                             });
}

}  // namespace peergraph
