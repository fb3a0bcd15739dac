// The distinct nodes of a list, in ascending order.
#pragma once

#include <cstdint>

#include "common/allocate.h"

namespace peergraph {

/// Writes the distinct ones of [count] `nodes` to `distinct`, in ascending order; returns their
/// number. Both lists have memory for `count` nodes, and all nodes are from 0 to num_nodes - 1;
/// the CPU raises IndexError for others.
int64_t distinct_nodes_cpu(const int64_t* nodes, int64_t count, int64_t num_nodes,
                           int64_t* distinct);

#ifdef PEERGRAPH_CUDA
/// Marks the nodes in a bit for each node of the graph, in memory of `allocate`, and reads the
/// marks in order: no sort. Runs in `stream` of `device` and waits for the number.
int64_t distinct_nodes_cuda(const int64_t* nodes, int64_t count, int64_t num_nodes,
                            int64_t* distinct, const Allocate& allocate, int device,
                            uintptr_t stream);
#endif

}  // namespace peergraph
