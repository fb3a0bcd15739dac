// g-SpMM on the CPU: a row at a time, its columns in as many vectors as fit into the registers.
#include "aggregate/spmm.h"

#include <vector>

#include "aggregate/column_blocks.h"

namespace peergraph {
namespace {

/// Sums the messages of a row, as many columns at a time as fit into the vector registers. Writes
/// the columns from `first` on to `out`, in the type of the operation's elements or accumulators.
template <typename T, int kPacks, int kLanes, int kBytes, typename Messages, typename Out>
PG_INLINE void sum_row(const Spmm& op, const Messages& messages, int64_t row, int64_t first,
                       Out* out) {
  using Sums = WidePack<AccumulatorOf<T>, kLanes, kBytes>;
  const int64_t begin = op.matrix.begin(row), end = op.matrix.end(row);
  Sums sums[kPacks], message[kPacks], count;
  for (int i = 0; i < kPacks; ++i) sums[i].fill(0);
  for (int64_t p = begin; p < end; ++p) {
    messages.read(p, first, message);
    for (int i = 0; i < kPacks; ++i) sums[i].add(message[i]);
  }
  count.fill(static_cast<AccumulatorOf<T>>(op.mean && end > begin ? end - begin : 1));
  for (int i = 0; i < kPacks; ++i) {
    sums[i].divide(count);
    sums[i].store(out + first + i * kLanes);
  }
}

/// Writes or adds the sums of a row to `out` from `first` on, rounded to its type. Not inlined:
/// with a loop over the edges for each type, the compiler would take twice as long.
template <typename Value>
__attribute__((noinline)) void write_row(const Spmm& op, const std::vector<Value>& sums,
                                         int64_t first) {
  with_dtype(op.out_dtype, [&](auto element) {
    auto* out = static_cast<decltype(element)*>(op.out) + first;
    for (size_t c = 0; c < sums.size(); ++c)
      narrow(op.accumulate ? static_cast<Value>(widen(out[c])) + sums[c] : sums[c], out + c);
  });
}

}  // namespace

void check_out_dtype(DType dtype, DType out_dtype) {
  const bool narrows =
      dtype == DType::kFloat32 && (out_dtype == DType::kFloat16 || out_dtype == DType::kBfloat16);
  PG_CHECK_ARG(dtype == out_dtype || narrows,
               "out must have the dtype of the operands, or float16 or bfloat16 for float32");
}

void spmm_cpu(const Spmm& op, int num_threads) {
  check_out_dtype(op.dtype, op.out_dtype);
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  const int64_t columns = op.operands.columns, stride = op.row_stride();
  const auto sum_rows = [&](const auto& messages, int64_t begin, int64_t end) PG_INLINED {
    using Given = std::decay_t<decltype(messages)>;
    using T = typename Given::Element;
    using Value = AccumulatorOf<T>;
    constexpr int kBytes = Given::kVectorBytes;
    const auto sum_into = [&](int64_t row, auto* sums) PG_INLINED {
      each_block<kMaxPacks<T, kBytes>, kLanesOf<Value>>(
          columns, [&](int64_t first, auto packs, auto lanes) PG_INLINED {
            sum_row<T, packs, lanes, kBytes>(op, messages, row, first, sums);
          });
    };
    const bool is_direct = !op.accumulate && op.dtype == op.out_dtype;
    T* const out = static_cast<T*>(op.out);
    // Blocks of columns may overlap, so the sums are added to `out` after the whole row is summed.
    std::vector<Value> sums(is_direct ? 0 : columns);
    Value* place = sums.data();
    int64_t step = 0;
    if constexpr (std::is_same_v<T, Value>) {
      // One loop over the edges is compiled for both places.
      if (is_direct) place = out, step = stride;
    } else if (is_direct) {
      for (int64_t row = begin; row < end; ++row) sum_into(row, out + row * stride);
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      sum_into(row, place + row * step);
      if (!is_direct) write_row(op, sums, row * stride);
    }
  };
  each_piece_of_messages<64>(op.matrix, op.operands, op.dtype, num_threads, sum_rows);
}

}  // namespace peergraph
