// Sums of messages over the edges of each row: g-SpMM (WholeGraph III-C4).
#pragma once

#include <cstdint>
#include <functional>

#include "aggregate/adjacency.h"
#include "aggregate/message.h"
#include "common/element.h"

namespace peergraph {

struct Spmm {
  Adjacency rows;
  Operands of;
  DType dtype = DType::kFloat32;  // of x, e and out
  bool mean = false;              // divide by the number of edges
  void* out = nullptr;            // [rows.num_rows, of.columns] written; zeros in empty rows
};

/// Sums in float (double for double), the edges of a row in order. All memory is this CPU's.
void spmm_cpu(const Spmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// How the GPU goes about it; the results do not depend on it beyond rounding.
struct Tuning {
  int64_t slice_bytes = 0;  // columns are worked off in slices of so many bytes; 0: all at once
  int l2_percent = 0;      // the hottest columns come first: so much of L2 is to keep them; 0: none
  int64_t tile_rows = 0;   // so many rows behind each other have neighbours in common; 0: have not
  int64_t max_chunks = 0;  // bound of what rows of more than kLongRow edges are cut into
};

/// As spmm_cpu, on `device` in `stream`; asynchronous. Rows are summed in a fixed order, which is
/// not that of the CPU. Scratch comes from `allocate`, and is used in `stream` only.
void spmm_cuda(const Spmm& op, const Tuning& tuning, const std::function<void*(int64_t)>& allocate,
               int device, uintptr_t stream);
#endif

}  // namespace peergraph
