// Largest or smallest message of each row and column, and its gradient.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

struct SpmmMinMax {
  CsrMatrix matrix;
  Operands operands;
  DType dtype = DType::kFloat32;
  bool minimum = false;
  void* out = nullptr;  // [num_rows, columns] written; 0 in empty rows, NaN where a message is NaN
  /// [num_rows, columns] int32 or int64 written: the first position that has the extremum, -1 in
  /// empty rows.
  void* arg = nullptr;
  int32_t arg_bytes = 4;
};

struct SpmmMinMaxBackward {
  CsrMatrix matrix;
  Operands
      operands;  // as of the forward; x and e may be null where the gradient does not need them
  DType dtype = DType::kFloat32;
  const void* arg = nullptr;  // [num_rows, columns] as SpmmMinMax gave it
  int32_t arg_bytes = 4;
  const void* grad = nullptr;  // [num_rows, columns]
  /// Both of float (double for double), zeros at the start, null where not wanted.
  void* grad_x = nullptr;  // [num_columns, columns]
  void* grad_e = nullptr;  // [num_edges, e_columns]
};

void spmm_minmax_cpu(const SpmmMinMax& op, int num_threads);
void spmm_minmax_backward_cpu(const SpmmMinMaxBackward& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spmm_minmax_cpu, on a GPU; asynchronous. `allocate` as in spmm.h.
void spmm_minmax_cuda(const SpmmMinMax& op, const Launch& launch, const Allocate& allocate);

/// As spmm_minmax_backward_cpu, on a GPU; asynchronous. grad_x adds by atomics, in no fixed
/// order, where `transpose` is null. Else by the rows of the transpose, whose `edge_ids` are
/// `positions` of op.rows, in their order.
void spmm_minmax_backward_cuda(const SpmmMinMaxBackward& op, const CsrMatrix* transpose,
                               const Launch& launch);
#endif

}  // namespace peergraph
