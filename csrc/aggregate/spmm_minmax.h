// Largest or smallest message of each row and column, and its gradient.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"

namespace peergraph {

struct Extremum {
  CsrMatrix rows;
  Operands of;
  DType dtype = DType::kFloat32;
  bool minimum = false;
  void* out = nullptr;  // [num_rows, columns] written; 0 in empty rows, NaN where a message is NaN
  /// [num_rows, columns] int32 or int64 written: the first position that has the extremum, -1 in
  /// empty rows.
  void* arg = nullptr;
  int32_t arg_bytes = 4;
};

struct ExtremumGrad {
  CsrMatrix rows;
  Operands of;  // as of the forward; x and e may be null where the gradient does not need them
  DType dtype = DType::kFloat32;
  const void* arg = nullptr;  // [num_rows, columns] as Extremum gave it
  int32_t arg_bytes = 4;
  const void* grad = nullptr;  // [num_rows, columns]
  /// Both of float (double for double), zeros at the start, null where not wanted.
  void* grad_x = nullptr;  // [num_columns, columns]
  void* grad_e = nullptr;  // [num_edges, e_columns]
};

void extremum_cpu(const Extremum& op, int num_threads);
void extremum_grad_cpu(const ExtremumGrad& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As extremum_cpu, on `device` in `stream`; asynchronous. `max_chunks` and `allocate` as in
/// spmm.h.
void extremum_cuda(const Extremum& op, int64_t max_chunks, const Allocate& allocate, int device,
                   uintptr_t stream);

/// As extremum_grad_cpu, on `device` in `stream`; asynchronous. grad_x adds by atomics, in no fixed
/// order, where `transpose` is null. Else by the rows of the transpose, whose `edge_ids` are
/// `positions` of op.rows, in their order.
void extremum_grad_cuda(const ExtremumGrad& op, const CsrMatrix* transpose, int device,
                        uintptr_t stream);
#endif

}  // namespace peergraph
