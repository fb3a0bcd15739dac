// Updates rows of a table in place. First the gradients of equal rows are summed. Then one pass
// reads gradient, optimizer state and row, and writes state and row.
#pragma once

#include <cstdint>
#include <vector>

#include "common/element.h"
#include "memory/table_view.h"
#include "memory/update_rule.h"

namespace peergraph {

/// Runs of a sorted list: run r consists of the rows positions[offsets[r] .. offsets[r + 1] - 1].
struct Runs {
  const int64_t* positions;
  const int64_t* offsets;  // [count + 1], ascending from 0
  int64_t count;
  int64_t num_positions;
  int64_t num_values;  // rows that the positions are of
};

/// Writes the sum of the rows of run r of `values`, added in order, to row r of `out`. Rows have
/// `width` elements, of `dtype` in `values` and of its accumulator's type in `out`.
void sum_runs_cpu(const void* values, DType dtype, int64_t width, const Runs& runs, void* out,
                  int num_threads);

/// Gradients of distinct rows: gradient i belongs to the internal row rows[i].
struct RowGradients {
  const int64_t* rows;
  const void* values;  // [count, width] of the accumulator's type of the table's elements
  int64_t count;
  int64_t width;
};

constexpr int kMaxStates = 2;

/// A table and its optimizer's state, row by row.
struct TrainedRows {
  TableView table;
  DType dtype;
  // Tables with elements of the accumulator's type, as many rows as `table`, and no replicated
  // rows.
  TableView states[kMaxStates];
};

/// Raises ValueError if tables, widths and rule do not fit together.
void check_update(const TrainedRows& trained, const RowGradients& grads, const UpdateRule& rule,
                  int num_states);

/// Updates the rows, in every replica, and their state. Rows must be in range, and distinct also
/// from the rows that other ranks update at the same time.
void sparse_update_cpu(const TrainedRows& trained, const RowGradients& grads,
                       const UpdateRule& rule, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As sum_runs_cpu, on `device` in `stream`, bit for bit.
void sum_runs_cuda(const void* values, DType dtype, int64_t width, const Runs& runs, void* out,
                   int device, uintptr_t stream);

/// As sparse_update_cpu, on `device` in `stream`, bit for bit.
void sparse_update_cuda(const TrainedRows& trained, const RowGradients& grads,
                        const UpdateRule& rule, int device, uintptr_t stream);
#endif

}  // namespace peergraph
