// Random walks along in-neighbours, uniform or second order (node2vec, Grover and Leskovec 2016).
//
// Step t of walk w takes its random numbers from stream `stream + t`, position w: draw 0 decides on
// a restart, draw 1 picks the neighbour. A second-order step tries candidates instead: try a picks
// by draw 2 + 2a and accepts by draw 3 + 2a.
#pragma once

#include <cstdint>

#include "memory/table_view.h"
#include "sampling/common/probability.h"
#include "store/csc_view.h"

namespace peergraph {

/// Most tries of a second-order step; the last candidate is taken without a test, so that a
/// step ends.
constexpr uint32_t kMaxTries = 4096;

/// The position of a walk that has ended.
constexpr int64_t kEnded = -1;

/// Steps of walks by one relation. A walk over several relations takes one call for each step.
struct Walks {
  int64_t count = 0;
  int64_t length = 0;            // steps of a whole walk
  int64_t first_step = 0;        // index of the first step of this call
  int64_t steps = 0;             // steps of this call
  int64_t* nodes = nullptr;      // [count, length + 1] user ids; column 0 holds the starts
  int64_t* edge_ids = nullptr;   // [count, length] user edge ids, -1: no edge; when asked for
  int64_t* positions = nullptr;  // [count] internal ids between calls, or kEnded
  IdMapView to_internal;         // of the nodes walks start at
  IdMapView to_user;             // of the nodes this relation leads to
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t restart_below = 0;  // the probability of a restart, in fixed point
  int64_t restart_every = 1;   // restarts are possible every so many steps, never before step 0
  bool jump = false;           // a restart goes back to the start; else it ends the walk
  bool stay = false;           // a walk that has ended repeats its last node; else -1 follows
  bool biased = false;         // second order, by the probabilities of accepting a candidate:
  uint64_t accept_return = kProbabilityOne;  // a candidate that is the previous node
  uint64_t accept_common = kProbabilityOne;  // a candidate that is a neighbour of the previous node
  uint64_t accept_other = kProbabilityOne;   // any other candidate
};

void random_walk_cpu(const CscView& csc, const Walks& walks, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. One thread takes a walk; one warp if steps are second
/// order.
void random_walk_cuda(const CscView& csc, const Walks& walks, int device, uintptr_t stream);
#endif

}  // namespace peergraph
