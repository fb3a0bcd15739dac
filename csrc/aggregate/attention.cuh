// Divides the heads of an edge among the lanes of a warp, and computes the values of an edge.
#pragma once

#include <cstdint>
#include <type_traits>

#include "aggregate/attention.h"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"

namespace peergraph {

/// Marks an edge that is left out, in a list of ids.
constexpr unsigned kNoNode = 0xffffffffu;

struct HeadShape {
  int32_t lanes_log2 = 0;  // 2^lanes_log2 lanes work on an edge
  int32_t per_head = 1;    // vectors of a head: a power of two
};

/// The lanes and the items of a lane that one head has.
struct HeadWidth {
  int lanes;       // of an edge's lanes
  int items_log2;  // 0 where a head has fewer vectors than an edge has lanes

  __device__ __forceinline__ HeadWidth(int per_head, int edge_lanes) {
    lanes = per_head < edge_lanes ? per_head : edge_lanes;
    items_log2 = 0;
    while (lanes << items_log2 < per_head) ++items_log2;
  }
};

/// Sums the lanes' shares of each head: each lane gets the sum of its items' heads. All lanes of
/// the warp must call it.
template <typename Value, int kItems>
__device__ __forceinline__ void sum_of_heads(Value (&shares)[kItems], const HeadWidth& width) {
  Value sums[kItems];
#pragma unroll
  for (int m = 0; m < kItems; ++m) {
    sums[m] = 0;
#pragma unroll
    for (int n = 0; n < kItems; ++n)
      if (n >> width.items_log2 == m >> width.items_log2) sums[m] += shares[n];
  }
#pragma unroll
  for (int m = 0; m < kItems; ++m) {
    for (int offset = width.lanes / 2; offset > 0; offset /= 2)
      sums[m] += __shfl_xor_sync(kFullMask, sums[m], offset);
    shares[m] = sums[m];
  }
}

/// The columns of an edge that one lane works on: kItems vectors of kVec columns. The lanes of an
/// edge take its vectors in turn. All columns of a vector belong to one head.
template <typename Value, int kVec, int kItems>
struct HeadLanes {
  int lanes, groups, group;
  HeadWidth width;
  bool active[kItems];
  bool leads[kItems];  // whether the item is the first of its head
  int64_t columns[kItems];
  int64_t heads[kItems];

  __device__ __forceinline__ HeadLanes(const HeadShape& shape, const Attention& inputs)
      : lanes(1 << shape.lanes_log2), width(shape.per_head, lanes) {
    groups = kWarpSize >> shape.lanes_log2;
    group = lane_id() >> shape.lanes_log2;
    const int lane = lane_id() & (lanes - 1);
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      columns[m] = static_cast<int64_t>(m * lanes + lane) * kVec;
      active[m] = columns[m] < inputs.columns();
      heads[m] = active[m] ? columns[m] / inputs.depth : 0;
      leads[m] = active[m] && columns[m] == heads[m] * inputs.depth;
    }
  }

  /// Sums the lanes' shares of each head: each lane gets the sum of its items' heads. All lanes of
  /// the warp must call it.
  __device__ __forceinline__ void sum_heads(Value (&shares)[kItems]) const {
    sum_of_heads(shares, width);
  }

  /// Adds up the values of the groups of lanes; all lanes of the warp must call it.
  __device__ __forceinline__ Value over_groups(Value sum) const {
    return sum_over_groups(sum, lanes);
  }
};

/// The other ends of a node's edges, with self loops handled, read kWarpSize edges at a time.
class OtherEnds {
 public:
  __device__ __forceinline__ OtherEnds(const CsrMatrix& matrix, const RowPart& part, int64_t loops)
      : matrix_(matrix), part_(part), skips_(loops >= 0) {
    const bool is_last = part.end == matrix.end(part.row);
    count_ = part.end - part.begin + (part.row < loops && is_last ? 1 : 0);
  }

  __device__ __forceinline__ int64_t count() const { return count_; }

  /// The other end of the `i`-th edge; kNoNode if the edge is left out.
  __device__ __forceinline__ unsigned at(int64_t i) const {
    if (i >= count_) return kNoNode;
    const int64_t position = part_.begin + i;
    if (position >= part_.end) return static_cast<unsigned>(part_.row);
    const int64_t other = matrix_.column(position);
    return skips_ && other == part_.row ? kNoNode : static_cast<unsigned>(other);
  }

 private:
  const CsrMatrix& matrix_;
  const RowPart& part_;
  bool skips_;
  int64_t count_;
};

template <typename Value>
__device__ __forceinline__ Value leaky(Value value, Value slope) {
  return value > 0 ? value : slope * value;
}

template <typename T, int kVec, int kItems>
using Packs = Pack<T, kVec>[kItems];

/// A node's row of features, this lane's share.
template <typename T, int kVec, int kItems, typename Lanes>
__device__ __forceinline__ void load_row(const void* values, int64_t node, const Attention& inputs,
                                         const Lanes& lane, Pack<T, kVec> (&out)[kItems]) {
  const T* row = static_cast<const T*>(values) + node * inputs.columns();
#pragma unroll
  for (int m = 0; m < kItems; ++m)
    if (lane.active[m]) out[m] = load_pack<T, kVec>(row + lane.columns[m]);
}

/// A node's number for each head, this lane's share; 0 where there are none.
template <typename Value, int kItems, typename Lanes>
__device__ __forceinline__ void load_heads(const void* values, int64_t node,
                                           const Attention& inputs, const Lanes& lane,
                                           Value (&out)[kItems]) {
  const Value* row = static_cast<const Value*>(values) + node * inputs.heads;
#pragma unroll
  for (int m = 0; m < kItems; ++m)
    out[m] = values != nullptr && lane.active[m] ? row[lane.heads[m]] : Value{0};
}

/// Parameters of the scores, this lane's share.
template <typename Value, int kVec, int kItems, typename Lanes>
__device__ __forceinline__ void load_att(const Attention& inputs, const Lanes& lane,
                                         Value (&att)[kItems][kVec]) {
#pragma unroll
  for (int m = 0; m < kItems; ++m)
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      att[m][i] =
          lane.active[m] ? static_cast<const Value*>(inputs.att)[lane.columns[m] + i] : Value{0};
}

/// This lane's share of dynamic scores: att * leaky_relu(u + v).
template <typename Value, typename T, int kVec, int kItems>
__device__ __forceinline__ void score_shares(const Pack<T, kVec> (&u)[kItems],
                                             const Pack<T, kVec> (&v)[kItems],
                                             const Value (&att)[kItems][kVec], Value slope,
                                             Value (&shares)[kItems]) {
#pragma unroll
  for (int m = 0; m < kItems; ++m) {
    shares[m] = 0;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      shares[m] += att[m][i] * leaky(widen(u[m].values[i]) + widen(v[m].values[i]), slope);
  }
}

inline bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

/// Whether heads of vectors of kVec fit kItems vectors a lane.
template <int kVec, int kItems>
bool heads_fit(int64_t heads, int64_t depth) {
  return depth % kVec == 0 && is_power_of_two(depth / kVec) &&
         heads * depth <= int64_t{kWarpSize} * kVec * kItems;
}

template <int kVec>
HeadShape head_shape(const Attention& inputs) {
  HeadShape shape;
  shape.per_head = static_cast<int32_t>(inputs.depth / kVec);
  const int64_t vectors = inputs.columns() / kVec;
  while (shape.lanes_log2 < 5 && int64_t{1} << shape.lanes_log2 < vectors) ++shape.lanes_log2;
  return shape;
}

constexpr int kWideItems = 2;  // vectors of 16 bytes
constexpr int kThinItems = 4;  // single values

template <int kVecs, int kItemsALane>
struct HeadTag {
  static constexpr int kVec = kVecs;
  static constexpr int kItems = kItemsALane;
};

/// Calls body(T{}, HeadTag) for the widest vectors that `aligned` addresses allow.
template <typename Body>
void with_heads(const Attention& inputs, bool aligned, const Body& body) {
  with_dtype(inputs.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVec = 16 / sizeof(T);
    if (aligned && heads_fit<kVec, 1>(inputs.heads, inputs.depth)) {
      body(element, HeadTag<kVec, 1>{});
    } else if (aligned && heads_fit<kVec, kWideItems>(inputs.heads, inputs.depth)) {
      body(element, HeadTag<kVec, kWideItems>{});
    } else {
      PG_CHECK_ARG((heads_fit<1, kThinItems>(inputs.heads, inputs.depth)),
                   "attention over heads of this size is not supported on a GPU");
      body(element, HeadTag<1, kThinItems>{});
    }
  });
}

inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

}  // namespace peergraph
