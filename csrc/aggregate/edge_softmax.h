// Softmax over the edges of each row, by head, and its gradient.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"

namespace peergraph {

/// Forward: out = softmax(values). Gradient: out = values * (grad - sum of values * grad), where
/// `values` are the softmax. All are [num_edges, heads] by edge.
struct EdgeSoftmax {
  CsrMatrix matrix;
  DType dtype = DType::kFloat32;
  int64_t heads = 1;
  const void* values = nullptr;
  const void* grad = nullptr;  // null: forward
  void* out = nullptr;
};

void edge_softmax_cpu(const EdgeSoftmax& op, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As edge_softmax_cpu, on a GPU; asynchronous. `allocate` as in spmm.h.
void edge_softmax_cuda(const EdgeSoftmax& op, const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
