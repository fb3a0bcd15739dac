// Largest or smallest messages of each row on the CPU, and their gradients.
#include "aggregate/spmm_minmax.h"

#include <atomic>
#include <limits>

#include "aggregate/column_blocks.h"

namespace peergraph {
namespace {

/// A minimum is computed as the maximum of the messages times -1.
template <bool kNan, typename T, int kPacks, int kLanes, int kBytes, typename Messages>
PG_INLINE void best_of_row(const SpmmMinMax& op, const Messages& messages, int64_t row,
                           int64_t first) {
  using Value = AccumulatorOf<T>;
  using Position = IntegerOf<Value>;
  const int64_t begin = op.matrix.begin(row), end = op.matrix.end(row);
  const int64_t at = row * op.operands.columns + first;
  const Value order = op.minimum ? -1 : 1;
  WidePack<Value, kLanes, kBytes> best[kPacks], message[kPacks];
  WidePack<Position, kLanes, kBytes> positions[kPacks];
  for (int i = 0; i < kPacks; ++i) {
    best[i].fill(0);
    positions[i].fill(begin == end ? -1 : 0);
  }
  if (begin < end) messages.read(begin, first, best);
  for (int i = 0; i < kPacks; ++i) best[i].scale(order);
  for (int64_t p = begin + 1; p < end; ++p) {
    messages.read(p, first, message);
    for (int i = 0; i < kPacks; ++i) {
      message[i].scale(order);
      best[i].template take_larger<kNan>(message[i], static_cast<Position>(p - begin),
                                         &positions[i]);
    }
  }
  for (int i = 0; i < kPacks; ++i) {
    best[i].scale(begin == end ? 1 : order);
    best[i].store(static_cast<T*>(op.out) + at + i * kLanes);
    Position lanes[kLanes];
    positions[i].store(lanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t position = lanes[lane] < 0 ? -1 : begin + lanes[lane];
      store_id(op.arg, op.arg_bytes, at + i * kLanes + lane, position);
    }
  }
}

template <bool kNan, typename Messages>
PG_INLINE void best_of_rows(const SpmmMinMax& op, const Messages& messages, int64_t first,
                            int64_t last) {
  using T = typename Messages::Element;
  constexpr int kBytes = Messages::kVectorBytes;
  for (int64_t row = first; row < last; ++row) {
    each_block<kMaxPacks<T, kBytes>, kLanesOf<AccumulatorOf<T>>>(
        op.operands.columns, [&](int64_t column, auto packs, auto lanes) PG_INLINED {
          best_of_row<kNan, T, packs, lanes, kBytes>(op, messages, row, column);
        });
  }
}

/// Returns whether messages can be NaN. Only for copied floats it can be false, which selects
/// faster code.
bool can_be_nan(const SpmmMinMax& op, int num_threads) {
  const bool copies = op.operands.message == Message::kCopyU && op.operands.x_rows == nullptr;
  const int64_t count = op.matrix.num_columns * op.operands.columns;
  // Checking each value once must cost little compared with the edges.
  if (!copies || op.dtype != DType::kFloat32 || op.matrix.num_edges < 2 * op.matrix.num_columns)
    return true;
  std::atomic<bool> has_nan{false};
  const float* x = static_cast<const float*>(op.operands.x);
  const auto look = [&](int64_t first, int64_t last) {
    bool any = false;
    for (int64_t i = first; i < last; ++i) any |= x[i] != x[i];
    if (any) has_nan = true;
  };
  parallel_for(count, 1 << 18, num_threads, look, torch_team());
  return has_nan;
}

/// Positions within a row are kept in lanes as wide as the lanes of the values.
void check_degrees(const SpmmMinMax& op) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (op.dtype == DType::kFloat64 || op.matrix.num_edges <= kMost) return;
  for (int64_t row = 0; row < op.matrix.num_rows; ++row)
    PG_CHECK_ARG(op.matrix.end(row) - op.matrix.begin(row) <= kMost,
                 "extrema: a row has more than 2^31 - 1 edges");
}

/// Each thread takes some values of every edge, with their columns: no two threads write to the
/// same element.
template <typename T>
void grad_groups(const SpmmMinMaxBackward& op, int64_t first, int64_t last) {
  using Value = AccumulatorOf<T>;
  const Operands& operands = op.operands;
  const int64_t group = operands.group();
  const T* x = static_cast<const T*>(operands.x);
  const T* e = static_cast<const T*>(operands.e);
  Value* grad_x = static_cast<Value*>(op.grad_x);
  Value* grad_e = static_cast<Value*>(op.grad_e);
  for (int64_t row = 0; row < op.matrix.num_rows; ++row) {
    for (int64_t c = first * group; c < last * group; ++c) {
      const int64_t at = row * operands.columns + c;
      const int64_t position = load_id(op.arg, op.arg_bytes, at);
      if (position < 0) continue;
      if (position >= op.matrix.num_edges) throw_changed("arg", at, position, op.matrix.num_edges);
      const Value grad = widen(static_cast<const T*>(op.grad)[at]);
      const int64_t column = op.matrix.column(position) * operands.columns + c;
      const int64_t edge = op.matrix.edge(position) * operands.e_columns + c / group;
      const Value weight = e == nullptr ? Value{1} : Value{widen(e[edge])};
      if (grad_x != nullptr) grad_x[column] += grad_of_u(operands.message, grad, weight);
      if (grad_e != nullptr) {
        const Value u = x == nullptr ? Value{} : Value{widen(x[column])};
        grad_e[edge] += grad_of_e(operands.message, grad, u, weight);
      }
    }
  }
}

}  // namespace

void spmm_minmax_cpu(const SpmmMinMax& op, int num_threads) {
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  check_degrees(op);
  const bool nan = can_be_nan(op, num_threads);
  // GCC compares wider vectors lane by lane. AVX-512 has more registers of 256 bits.
  each_piece_of_messages<32>(op.matrix, op.operands, op.dtype, num_threads,
                             [&](const auto& messages, int64_t first, int64_t last) PG_INLINED {
                               using Given = std::decay_t<decltype(messages)>;
                               if constexpr (Given::kCopiesU && kIsCommon<typename Given::Element>)
                                 if (!nan) return best_of_rows<false>(op, messages, first, last);
                               best_of_rows<true>(op, messages, first, last);
                             });
}

void spmm_minmax_backward_cpu(const SpmmMinMaxBackward& op, int num_threads) {
  if (op.operands.columns == 0) return;
  const int64_t groups = op.operands.e_columns;
  const int64_t grain = row_grain(groups, 0, op.matrix.num_rows * op.operands.group());
  with_dtype(op.dtype, [&](auto element) {
    const auto walk = [&](int64_t first, int64_t last) {
      grad_groups<decltype(element)>(op, first, last);
    };
    parallel_for(groups, grain, num_threads, walk, torch_team());
  });
}

}  // namespace peergraph
