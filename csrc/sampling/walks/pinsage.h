// PinSAGE neighbours (Ying et al. 2018): the nodes that random walks from a target visit most.
#pragma once

#include <cstdint>

#include "sampling/common/arena.h"

namespace peergraph {

struct Visits {
  int64_t targets = 0;
  int64_t per_target = 0;          // below 2^31
  const int64_t* nodes = nullptr;  // [targets, per_target] user ids, -1: none
  int64_t keep = 0;
  int64_t* top_nodes = nullptr;   // [targets, keep] by falling count, equal ones by first visit
  int32_t* top_counts = nullptr;  // [targets, keep]; -1 and 0 where a target visited fewer nodes
};

void top_visits_cpu(const Visits& visits, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. A block serves a target and counts in a hash table in
/// shared memory, or in memory of `allocate` if there are more than 1024 visits.
void top_visits_cuda(const Visits& visits, const Allocate& allocate, int device, uintptr_t stream);
#endif

}  // namespace peergraph
