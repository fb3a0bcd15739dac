// Graph attention: softmax of edge scores and the weighted sum of sources in one pass. No values of
// edges are stored; the gradients compute the scores again.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"
#include "common/allocate.h"
#include "common/element.h"
#include "common/launch.h"
#include "common/partition_point.h"

namespace peergraph {

/// The inputs of attention. Accumulators are float, or double for double.
///
/// The score of an edge for a head is leaky_relu(left[source] + right[destination]) (Velickovic et
/// al. 2018), or, `dynamic`, the sum over the head's columns of att * leaky_relu(x[source] +
/// right[destination]) (Brody et al. 2022).
struct Attention {
  CsrMatrix matrix;  // by destination
  DType dtype = DType::kFloat32;
  bool dynamic = false;
  int64_t heads = 1;
  int64_t depth = 1;  // columns of a head
  /// -1: self loops are used as they are. Otherwise self loops are left out, and the first `loops`
  /// rows get one self loop each.
  int64_t loops = -1;
  double slope = 0.2;          // of leaky_relu below 0
  const void* x = nullptr;     // [num_columns, heads * depth] of dtype
  const void* left = nullptr;  // [num_columns, heads] accumulators; null where dynamic
  const void* right =
      nullptr;                // [num_rows, heads] accumulators; [num_rows, heads * depth] of dtype
  const void* att = nullptr;  // dynamic: [num_vectors, heads * depth] accumulators
  int64_t num_vectors = 1;
  /// [num_vectors + 1] each, the first row and the first column of each vector: edges from the
  /// columns of a vector end in its rows. Null if there is one vector.
  const int64_t* row_cuts = nullptr;
  const int64_t* column_cuts = nullptr;

  PG_HD int64_t columns() const { return heads * depth; }

  /// The vector of a row or a column, by the cuts of rows or columns.
  template <typename Value>
  PG_HD const Value* att_of(const int64_t* cuts, int64_t node) const {
    const auto* const vectors = static_cast<const Value*>(att);
    if (cuts == nullptr) return vectors;
    const auto begins = [&](int64_t vector) { return cuts[vector] <= node; };
    return vectors + (partition_point(int64_t{1}, num_vectors, begins) - 1) * columns();
  }
};

struct AttentionForward {
  Attention inputs;
  void* out = nullptr;  // [num_rows, heads * depth] of dtype, written; zeros in rows without edges
  void* lse = nullptr;  // [num_rows, heads] accumulators, written: log of the sum of exp(score)
};

/// All results are accumulators, but grad_x where it is summed by column, which is of dtype. Null
/// results are not computed.
struct AttentionBackward {
  Attention inputs;
  const void* grad = nullptr;   // [num_rows, heads * depth] of dtype
  const void* lse = nullptr;    // written by the forward pass
  const void* delta = nullptr;  // [num_rows, heads]: sum over the head of grad * out
  void* grad_x = nullptr;       // [num_columns, heads * depth]
  void* grad_left = nullptr;    // [num_columns, heads]
  void* grad_right = nullptr;   // as right
  void* grad_att = nullptr;     // [num_rows, heads * depth]: each row's share
};

void attention_cpu(const AttentionForward& op, int num_threads);

/// Writes the gradients of destinations: grad_right and grad_att.
void attention_backward_rows_cpu(const AttentionBackward& op, int num_threads);

/// Writes the gradients of sources: grad_x and grad_left. `transpose` has the edges by source.
void attention_backward_columns_cpu(const AttentionBackward& op, const CsrMatrix& transpose,
                                    int num_threads);

#ifdef PEERGRAPH_CUDA
/// Whether the GPU's kernels take heads of these sizes.
bool attention_fits_cuda(DType dtype, int64_t heads, int64_t depth);

/// As attention_cpu, on a GPU; asynchronous. `allocate` as in spmm.h.
void attention_cuda(const AttentionForward& op, const Launch& launch, const Allocate& allocate);

/// As attention_backward_rows_cpu. If grad_x is not null, it also adds grad_x and grad_left to
/// zeros by atomics, in no fixed order.
void attention_backward_rows_cuda(const AttentionBackward& op, const Launch& launch,
                                  const Allocate& allocate);

/// As attention_backward_columns_cpu. If grad_right is not null (only for scores that are not
/// dynamic), it also adds grad_right to zeros by atomics, in no fixed order.
void attention_backward_columns_cuda(const AttentionBackward& op, const CsrMatrix& transpose,
                                     const Launch& launch, const Allocate& allocate);
#endif

}  // namespace peergraph
