// Sums over the local and the remote neighbours of each row in one kernel (MGG 3.1, 3.3).
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "aggregate/message.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

/// The parameters of the interleaving of local and remote edges on a GPU (MGG 4). Results do not
/// depend on them.
struct Interleaving {
  /// Remote edges whose rows a warp reads before it adds any of them (MGG's ps): as many as 1, 2, 4
  /// or 8 vectors of each lane hold, at most kWarpSize.
  int32_t partition = 16;
  /// Number of adjacent rows that one warp sums (dist); 1..kMaxDistance.
  int32_t distance = 4;
  int32_t warps_per_block = 4;  // wpb; 1..kMaxInterleavedWarps
};

constexpr int32_t kMaxDistance = 32;
constexpr int32_t kMaxInterleavedWarps = 16;

/// The edges of each row are in two matrices with the same number of rows. `local` has the sources
/// in this GPU's memory; `remote` has the sources at the addresses `remote_operands.x_rows`. The
/// schedule of `local` determines which rows are cut in chunks: rows with many edges in one matrix.
struct InterleavedSpmm {
  CsrMatrix local;
  CsrMatrix remote;
  Operands local_operands;
  Operands remote_operands;
  DType dtype = DType::kFloat32;  // of x, e and out: float32 or float64
  bool mean = false;              // divide by the number of edges, local and remote
  Interleaving interleaving;
  void* out = nullptr;  // [local.num_rows, columns]; empty rows become zeros
};

/// Sums the local edges of each row in order, then the remote edges. All memory is this CPU's.
void interleaved_spmm_cpu(const InterleavedSpmm& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As interleaved_spmm_cpu, on a GPU; asynchronous. Messages are copy_u, or mul by one value or
/// `columns` values of each edge. Rows are read in vectors of 16 bytes: all addresses are multiples
/// of that. The order of sums depends on the schedule of `local` alone, and is that of spmm_cuda
/// over `local`, then accumulating over `remote`, without `mean`.
void interleaved_spmm_cuda(const InterleavedSpmm& op, const Launch& launch,
                           const Allocate& allocate);
#endif

}  // namespace peergraph
