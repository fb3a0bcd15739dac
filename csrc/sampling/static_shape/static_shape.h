// K-hop samples of a fixed shape: every array is as large as a bound says, what is found is counted
// on the device, and the host waits for nothing. So a CUDA graph can hold a sample.
//
// The rows of a node type are its seeds, a row that stays padding (the sink), and then a segment
// for the new nodes of each hop. Padding rows are at the end of each segment and have the id -1;
// padding edges are at the end of each hop and go from sink to sink.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/khop/khop.h"

namespace peergraph {

struct FixedSeeds {
  int node_type = 0;
  const int64_t* ids = nullptr;  // [room] user ids
  int64_t room = 0;
  const int64_t* count = nullptr;  // how many of them there are, on the device; null: all
};

/// Rows of a type in all, and edges of a relation in one hop, stay below kMaxSampleRows.
struct FixedBounds {
  std::vector<std::vector<int64_t>> nodes;  // by type: new nodes of each hop
  std::vector<std::vector<int64_t>> edges;  // by relation: edges of each hop
};

struct FixedResult {
  // With the room of segments and hops for its counts.
  SampleResult padded;
  // On the device: by type the seeds and the new nodes of each hop, then by relation the edges of
  // each hop.
  int64_t* counts = nullptr;
};

/// Draws what sample_khop would, by the seed at `seed_at` unless it is null. Seeds that are no
/// nodes, counts of seeds that are too large and bounds that are too small are recorded in the
/// device's error slot, which must exist already where a graph is captured; the sample is then
/// valid memory with undefined contents. `direct` holds one direct map per node type, all kUnknown,
/// and is left so, also after errors; not used by disjoint samples.
FixedResult sample_fixed_cuda(const SamplerSpec& spec, const std::vector<FixedSeeds>& seeds,
                              uint64_t seed, const uint64_t* seed_at, const int64_t* seed_times,
                              const std::vector<uint32_t*>& direct, const FixedBounds& bounds,
                              const Allocate& allocate, Arena& arena, int device, uintptr_t stream);

}  // namespace peergraph
