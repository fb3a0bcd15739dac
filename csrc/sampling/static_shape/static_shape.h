// K-hop samples of a static shape: every array has the size of a bound, counts are on the
// device, and the host never waits. So a CUDA graph can capture a sample.
//
// The rows of a node type are a segment for its seeds, one row that is always padding (the
// padding row), and a segment for the new nodes of each hop. Padding rows are at the end of each
// segment. Padding edges are at the end of each hop. They begin and end, evenly, at the padding
// rows of the last segment that their types have before the hop (all of one row would be a hub, for
// which kernels are slow); the offsets of the hop contain them. If a type has no padding there,
// they begin at its padding row. If a hop has no padding among its targets, its padding edges go to
// the padding row, and the offsets end before them. The id of padding is -1. Or it is valid, for
// code that reads attributes by all ids: that of the first seed for nodes, 0 for edges and without
// seeds.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/khop/khop.h"

namespace peergraph {

struct PaddedSeeds {
  int node_type = 0;
  const int64_t* ids = nullptr;  // [capacity] user ids
  int64_t capacity = 0;
  const int64_t* count = nullptr;  // number of seeds, on the device; null: `capacity`
};

/// The rows of a type in all, and the edges of a relation in one hop, are fewer than
/// kMaxSampleRows.
struct StaticShapeBounds {
  std::vector<std::vector<int64_t>> nodes;  // by type: new nodes of each hop
  std::vector<std::vector<int64_t>> edges;  // by relation: edges of each hop
  bool reported = true;  // whether a bound that is too small is recorded as an error
};

struct StaticShapeResult {
  SampleResult padded;  // without the numbers of nodes and edges
  // On the device: by type the number of seeds and of new nodes of each hop, then by relation
  // the number of edges of each hop.
  int64_t* counts = nullptr;
};

/// Draws the sample that sample_khop draws, by the seed at `seed_at` unless that is null. Seeds
/// that are no nodes, counts of seeds that are too large and, if `bounds.reported`, bounds that are
/// too small are recorded in the error slot of the device, which must exist before a graph is
/// captured; the contents of the sample are then undefined. The count of a bound that is too small
/// equals the bound. `direct` holds one direct map per node type, with one more word behind it, the
/// least word that samples may have written. All are kUnknown at first, and then belong to the
/// samples, one after the other; disjoint samples do not use them.
StaticShapeResult sample_static_shape_cuda(const SamplerSpec& spec,
                                           const std::vector<PaddedSeeds>& seeds, uint64_t seed,
                                           const uint64_t* seed_at, const SeedTimes& seed_times,
                                           const std::vector<uint32_t*>& direct,
                                           const StaticShapeBounds& bounds, bool valid_padding,
                                           const Allocate& allocate, Arena& arena, int device,
                                           uintptr_t stream);

}  // namespace peergraph
