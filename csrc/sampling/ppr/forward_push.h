// Personalised PageRank by forward push (Andersen, Chung and Lang 2006), along in-neighbours.
//
// A seed's residual begins as 1. Pushing a node moves the share alpha of its residual to its
// estimate, and splits the rest equally over its neighbour list. Each round pushes all nodes whose
// residual is at least epsilon * max(degree, 1), all at once; the first round pushes the seed. The
// search ends when there is no such node. A walk that reaches a node without neighbours ends there.
//
// Amounts are integers, in units of 2^-62, and what a division leaves over stays in the residual.
// So sums depend on no order, and the CPU and the GPU return the same bits.
#pragma once

#include <cstdint>

#include "common/allocate.h"
#include "common/philox.h"
#include "store/csc_view.h"

namespace peergraph {

constexpr uint64_t kWholeResidual = uint64_t{1} << 62;
constexpr double kResidualUnit = 0x1p-62;

/// The degree of a node whose list has not been looked up. A node of so many neighbours is never
/// pushed, as epsilon is at least 2^-30.
constexpr uint32_t kUnknownDegree = 0xFFFFFFFFu;

struct ForwardPush {
  int64_t num_seeds = 0;
  const int64_t* seeds = nullptr;  // [num_seeds] user ids
  int64_t keep = 0;
  int64_t* nodes = nullptr;  // [num_seeds, keep] user ids; -1 where fewer nodes were pushed
  float* weights = nullptr;  // [num_seeds, keep] estimates; they fall, equal ones by user id
  IdMapView to_internal;     // of the nodes
  IdMapView to_user;         // of the nodes
  uint64_t alpha = 0;        // as a fraction of 2^64
  uint64_t epsilon = 1;      // in units of 2^-62; at least 2^32
  int64_t most_nodes = 1;    // an upper bound of the nodes with a residual, of any seed
};

/// What a push does with a residual.
struct Push {
  uint64_t estimate;  // is added to the node's estimate
  uint64_t share;     // is added to the residual of each neighbour
  uint64_t rest;      // stays
};

PG_HD Push push_of(uint64_t residual, uint32_t degree, uint64_t alpha) {
  const uint64_t estimate = mul_high_u64(residual, alpha);
  if (degree == 0) return {estimate, 0, 0};
  const uint64_t passed = residual - estimate;
  const uint64_t share = passed / degree;
  return {estimate, share, passed - share * degree};
}

/// The residual from which on a node is pushed.
PG_HD uint64_t push_threshold(uint64_t epsilon, uint32_t degree) {
  if (degree <= 1) return epsilon;
  const uint64_t never = kWholeResidual + 1;
  return mul_high_u64(epsilon, degree) != 0 || epsilon * degree > never ? never : epsilon * degree;
}

PG_HD uint32_t saturated_degree(int64_t degree) {
  return degree < kUnknownDegree ? static_cast<uint32_t>(degree) : kUnknownDegree;
}

/// The push of a seed in the first round. If its neighbours are too many for any of them to be
/// pushed, the list is not read.
PG_HD Push push_of_seed(uint32_t degree, const ForwardPush& push) {
  Push first = push_of(kWholeResidual, degree, push.alpha);
  if (push_threshold(push.epsilon, degree) > kWholeResidual) first.share = 0;
  return first;
}

void forward_push_cpu(const CscView& csc, const ForwardPush& push, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. A block serves a seed, with a hash table in shared
/// memory; seeds that reach too many nodes for it get one in memory of `allocate`.
void forward_push_cuda(const CscView& csc, const ForwardPush& push, const Allocate& allocate,
                       int device, uintptr_t stream);
#endif

}  // namespace peergraph
