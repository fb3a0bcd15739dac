// Tests whether a neighbour list holds a node. Lists have the user's order, so the test reads
// the list from the start; on the GPU the lanes of a warp share the reading.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ids.h"
#include "store/csc_view.h"
#ifdef __CUDACC__
#include "common/warp.cuh"
#endif

namespace peergraph {

/// Tells whether a row of a CSC contains a node; each thread looks for a node of its own.
struct ContainsInTurn {
  PG_HD bool operator()(const CscView& csc, int64_t row, int64_t node) const {
    const Neighbors list = csc.neighbors(row);
    if (csc.index_bytes == 4)
      return find(static_cast<const int32_t*>(list.indices), list.degree,
                  static_cast<int32_t>(node));
    return find(static_cast<const int64_t*>(list.indices), list.degree, node);
  }

 private:
  template <typename Id>
  PG_HD static bool find(const Id* ids, int64_t count, Id wanted) {
    constexpr int64_t kAtOnce = 32;  // without a branch, so that the compiler vectorises
    int64_t i = 0;
    for (; i + kAtOnce <= count; i += kAtOnce) {
      bool hit = false;
      for (int64_t k = 0; k < kAtOnce; ++k) hit |= ids[i + k] == wanted;
      if (hit) return true;
    }
    for (; i < count; ++i)
      if (ids[i] == wanted) return true;
    return false;
  }
};

#ifdef __CUDACC__
/// The test with a warp. All lanes call it with the same arguments and get the same answer.
struct ContainsByWarp {
  static constexpr int kLanes = 32;
  static constexpr int kLoads = 4;  // loads in flight on each lane

  __device__ bool operator()(const CscView& csc, int64_t row, int64_t node) const {
    const Neighbors list = csc.neighbors(row);
    const int lane = threadIdx.x % kLanes;
    for (int64_t begin = 0; begin < list.degree; begin += kLanes * kLoads) {
      bool hit = false;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int64_t i = begin + k * kLanes + lane;
        if (i < list.degree) hit |= load_id(list.indices, csc.index_bytes, i) == node;
      }
      if (__any_sync(kFullMask, hit)) return true;
    }
    return false;
  }
};
#endif

}  // namespace peergraph
