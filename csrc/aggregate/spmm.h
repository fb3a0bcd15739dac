// Sums of messages over the edges of each row: g-SpMM (WholeGraph III-C4).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"

namespace peergraph {

struct Spmm {
  CsrMatrix rows;
  Operands of;
  DType dtype = DType::kFloat32;  // of x, e and out
  bool mean = false;              // divide by the number of edges
  void* out = nullptr;            // [rows.num_rows, of.columns] written; zeros in empty rows
};

/// Sums in float (double for double), the edges of a row in order. All memory is this CPU's.
void spmm_cpu(const Spmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As spmm_cpu, on `device` in `stream`; asynchronous. Rows are summed in a fixed order, which is
/// not that of the CPU. `max_chunks` bounds what rows of more than kLongRow edges are cut into.
/// Scratch comes from `allocate`, and is used in `stream` only.
void spmm_cuda(const Spmm& op, int64_t max_chunks, const Allocate& allocate, int device,
               uintptr_t stream);
#endif

}  // namespace peergraph
