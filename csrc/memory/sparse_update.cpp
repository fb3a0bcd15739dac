#include "memory/sparse_update.h"

#include <algorithm>
#include <string>

#include "common/parallel.h"
#include "common/read_once.h"

namespace peergraph {
namespace {

constexpr int64_t kGrainElements = 16 << 10;

int64_t rows_per_piece(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

int64_t size_of(DType dtype) {
  int64_t size = 0;
  with_dtype(dtype, [&](auto element) { size = sizeof(element); });
  return size;
}

/// Raises IndexError unless the item `at` of a list is in 0 .. limit-1.
void check_index(const char* list, int64_t at, int64_t value, int64_t limit) {
  if (!is_below(value, limit))
    throw std::out_of_range(std::string(list) + "[" + std::to_string(at) +
                            "] = " + std::to_string(value) + " is out of range for " +
                            std::to_string(limit));
}

template <typename T>
void write_row_element(const TableView& table, int64_t row, int64_t column, T value) {
  const auto write = [&](char* at) { reinterpret_cast<T*>(at)[column] = value; };
  if (row >= table.map.replicated) return write(table.row(row));
  for (int32_t r = 0; r < table.num_replicas; ++r) write(table.replicas[r] + row * table.row_bytes);
}

template <typename T, typename Rule>
void update_row(const TrainedRows& trained, int64_t row, const AccumulatorOf<T>* grad,
                int64_t width, AccumulatorOf<T> grad_scale, const Rule& rule) {
  using A = AccumulatorOf<T>;
  const T* weights = reinterpret_cast<const T*>(trained.table.row(row));
  A* states[kMaxStates] = {};
  for (int s = 0; s < Rule::kStates; ++s)
    states[s] = reinterpret_cast<A*>(trained.states[s].row(row));
  for (int64_t c = 0; c < width; ++c) {
    A state[kMaxStates] = {};
    for (int s = 0; s < Rule::kStates; ++s) state[s] = states[s][c];
    T updated;
    narrow(rule(widen(weights[c]), multiply_exact(grad_scale, grad[c]), state), &updated);
    for (int s = 0; s < Rule::kStates; ++s) states[s][c] = state[s];
    write_row_element(trained.table, row, c, updated);
  }
}

}  // namespace

void sum_runs_cpu(const void* values, DType dtype, int64_t width, const Runs& runs, void* out,
                  int num_threads) {
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    using A = AccumulatorOf<T>;
    parallel_for(runs.count, rows_per_piece(width), num_threads, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        A* sum = static_cast<A*>(out) + r * width;
        std::fill(sum, sum + width, A{0});
        const int64_t first = runs.offsets[r], last = runs.offsets[r + 1];
        check_index("offsets", r, first, runs.num_positions + 1);
        check_index("offsets", r + 1, last, runs.num_positions + 1);
        for (int64_t i = first; i < last; ++i) {
          const int64_t position = runs.positions[i];
          check_index("positions", i, position, runs.num_values);
          const T* row = static_cast<const T*>(values) + position * width;
          for (int64_t c = 0; c < width; ++c) sum[c] = add_exact(sum[c], widen(row[c]));
        }
      }
    });
  });
}

void check_update(const TrainedRows& trained, const RowGradients& grads, const UpdateRule& rule,
                  int num_states) {
  PG_CHECK_ARG(grads.count >= 0 && grads.width >= 0, "count and width must not be negative");
  PG_CHECK_ARG(trained.table.row_bytes == grads.width * size_of(trained.dtype),
               "width must be that of the table's rows");
  const TierMap& map = trained.table.map;
  PG_CHECK_ARG(map.replicated + map.sharded + map.host == map.rows, "no row may be on disk");
  with_dtype(trained.dtype, [&](auto element) {
    using A = AccumulatorOf<decltype(element)>;
    with_rule<A>(rule, [&](auto typed) {
      PG_CHECK_ARG(num_states == typed.kStates, "the optimizer takes " +
                                                    std::to_string(typed.kStates) +
                                                    " states, got " + std::to_string(num_states));
    });
    for (int s = 0; s < num_states; ++s) {
      const TableView& state = trained.states[s];
      PG_CHECK_ARG(state.map.rows == trained.table.map.rows &&
                       state.row_bytes == grads.width * static_cast<int64_t>(sizeof(A)),
                   "a state must have the table's rows and width, in float32 or float64");
      PG_CHECK_ARG(state.map.replicated == 0, "a state must not be replicated");
    }
  });
}

void sparse_update_cpu(const TrainedRows& trained, const RowGradients& grads,
                       const UpdateRule& rule, int num_threads) {
  with_dtype(trained.dtype, [&](auto element) {
    using T = decltype(element);
    using A = AccumulatorOf<T>;
    with_rule<A>(rule, [&](const auto& typed) {
      const A scale = static_cast<A>(rule.grad_scale);
      parallel_for(
          grads.count, rows_per_piece(grads.width), num_threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t row = grads.rows[i];
              check_index("rows", i, row, trained.table.map.rows);
              update_row<T>(trained, row, static_cast<const A*>(grads.values) + i * grads.width,
                            grads.width, scale, typed);
            }
          });
    });
  });
}

}  // namespace peergraph
