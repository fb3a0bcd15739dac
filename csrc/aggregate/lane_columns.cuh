// How the lanes of a warp share out the columns of a message, and how they read messages: several
// edges at a time, each by as many lanes as its columns need, with enough rows in flight to cover
// the latency of memory (MGG 3.3).
#pragma once

#include <cstdint>

#include "aggregate/message.h"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/vector_access.cuh"
#include "common/element.h"

namespace peergraph {

/// How many values of e an edge has for the columns of a lane.
enum class EdgeValues : int32_t { kNone, kOne, kByGroup, kFull };

/// Launch parameters: 2^lanes_log2 lanes work on an edge, kWarpSize / lanes edges at a time.
struct LaneShape {
  int32_t lanes_log2 = 0;
  EdgeValues edge_values = EdgeValues::kNone;
};

/// The columns of a lane: kItems vectors, strided by the lanes of an edge.
template <int kVec, int kItems>
struct Lanes {
  LaneShape shape;
  int lanes;   // for an edge
  int groups;  // edges at a time
  int group;   // this lane's edge among them
  int64_t columns[kItems];
  bool on[kItems];
  int64_t e_columns[kItems];

  __device__ __forceinline__ Lanes(const LaneShape& shape, const Operands& of) : shape(shape) {
    lanes = 1 << shape.lanes_log2;
    groups = kWarpSize >> shape.lanes_log2;
    group = lane_id() >> shape.lanes_log2;
    const int lane = lane_id() & (lanes - 1);
    const int64_t first = static_cast<int64_t>(blockIdx.y) * lanes * kVec * kItems;
    const bool by_group = shape.edge_values == EdgeValues::kByGroup;
    const int64_t width = of.group();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      columns[m] = first + static_cast<int64_t>(m * lanes + lane) * kVec;
      on[m] = columns[m] < of.columns;
      e_columns[m] = by_group ? columns[m] / width : columns[m];
    }
  }
};

/// What is known of a message at compile time: the hot ones are, the others share their code.
/// kScale: times the one value that each edge has.
enum class Known { kCopyU, kScale, kMul, kNothing };

template <Known kKnown, typename Value>
__device__ __forceinline__ Value known_apply(Message message, Value u, Value e) {
  if constexpr (kKnown == Known::kCopyU) return u;
  if constexpr (kKnown == Known::kMul || kKnown == Known::kScale) return u * e;
  return apply(message, u, e);
}

/// Where rows lie: in a matrix, or anywhere, where Operands::x_rows says.
enum class Lie { kInMatrix, kAnywhere };

/// Calls visit(position, item, i, value) for value i of each vector of each message of a part that
/// is this lane's share.
template <Known kKnown, Lie kLie, int kInFlight, typename T, int kVec, int kItems, typename Visit>
__device__ __forceinline__ void each_message(const CsrMatrix& rows, const Operands& of,
                                             const Lanes<kVec, kItems>& at, const Part& part,
                                             const Visit& visit) {
  using Value = AccumulatorOf<T>;
  constexpr bool kByAddress = kLie == Lie::kAnywhere;
  constexpr bool kScales = kKnown == Known::kScale;
  constexpr bool kMayUseE = kKnown != Known::kCopyU && !kScales;
  const bool reads_x = kKnown != Known::kNothing || uses_u(of.message);
  const T* x = static_cast<const T*>(of.x);
  const T* e = static_cast<const T*>(of.e);
  const int lane = lane_id();
  const EdgeValues mode = kMayUseE ? at.shape.edge_values : EdgeValues::kNone;

  // Each lane reads the ids of one edge; those of the next kWarpSize edges are under way meanwhile.
  unsigned next = 0;
  T next_scale = {};
  const auto read_next = [&](int64_t position) {
    if (position >= part.end) return;
    next = static_cast<unsigned>(rows.column(position));
    if constexpr (kScales) next_scale = e[rows.edge(position)];
  };
  read_next(part.begin + lane);
  for (int64_t first = part.begin; first < part.end; first += kWarpSize) {
    const int count = static_cast<int>(part.end - first < kWarpSize ? part.end - first : kWarpSize);
    const unsigned own_column = next;
    unsigned long long own_row = 0;
    if constexpr (kByAddress) {
      if (reads_x && lane < count) own_row = static_cast<unsigned long long>(of.x_rows[own_column]);
    }
    int64_t own_edge = 0;
    Value own_weight = widen(next_scale);
    read_next(first + kWarpSize + lane);
    if (kMayUseE && mode != EdgeValues::kNone && lane < count) {
      own_edge = rows.edge(first + lane);
      if (mode == EdgeValues::kOne) own_weight = widen(e[own_edge]);
    }

    for (int step = 0; step < count; step += at.groups * kInFlight) {
      Pack<T, kVec> us[kInFlight][kItems] = {};
      Pack<T, kVec> es[kMayUseE ? kInFlight : 1][kItems] = {};
      if (reads_x) {
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int edge = step + k * at.groups + at.group;
          const T* row;
          if constexpr (kByAddress) {
            row = reinterpret_cast<const T*>(__shfl_sync(kFullMask, own_row, edge % kWarpSize));
          } else {
            const int64_t column = __shfl_sync(kFullMask, own_column, edge % kWarpSize);
            row = x + column * of.columns;
          }
          const bool there = !kByAddress || row != nullptr;
#pragma unroll
          for (int m = 0; m < kItems; ++m)
            if (edge < count && at.on[m] && there)
              us[k][m] = load_pack<T, kVec>(row + at.columns[m]);
        }
      }
      Value weights[kMayUseE || kScales ? kInFlight : 1] = {};
      if (kScales || (kMayUseE && mode == EdgeValues::kOne)) {
#pragma unroll
        for (int k = 0; k < kInFlight; ++k)
          weights[k] =
              __shfl_sync(kFullMask, own_weight, (step + k * at.groups + at.group) % kWarpSize);
      } else if (kMayUseE && mode != EdgeValues::kNone) {
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int edge = step + k * at.groups + at.group;
          const int64_t id = __shfl_sync(kFullMask, own_edge, edge % kWarpSize);
          const T* row = e + id * of.e_columns;
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            if (edge >= count || !at.on[m]) continue;
            if (mode == EdgeValues::kFull) {
              es[k][m] = load_pack<T, kVec>(row + at.e_columns[m]);
            } else {
              es[k][m].values[0] = row[at.e_columns[m]];
            }
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int edge = step + k * at.groups + at.group;
        if (edge >= count) continue;
#pragma unroll
        for (int m = 0; m < kItems; ++m) {
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            Value weight = 0;
            if constexpr (kScales) {
              weight = weights[k];
            } else if constexpr (kMayUseE) {
              weight = mode == EdgeValues::kOne    ? weights[k]
                       : mode == EdgeValues::kFull ? widen(es[k][m].values[i])
                                                   : widen(es[k][m].values[0]);
            }
            const Value u = widen(us[k][m].values[i]);
            visit(first + edge, m, i, known_apply<kKnown>(of.message, u, weight));
          }
        }
      }
    }
  }
}

/// What a kernel on vectors of kVec values and kItems vectors a lane is launched with.
template <int kVec, int kItems>
struct LaneLaunch {
  LaneShape shape;
  unsigned slices;  // of the columns, gridDim.y
};

constexpr int kNarrowItems = 4;

inline EdgeValues edge_values_of(const Operands& of, bool vectors) {
  if (!uses_e(of.message)) return EdgeValues::kNone;
  if (of.e_columns == 1) return EdgeValues::kOne;
  return vectors && of.e_columns == of.columns ? EdgeValues::kFull : EdgeValues::kByGroup;
}

/// Whether rows of x, of e and of the output can be read 16 bytes at a time.
template <typename T>
bool can_use_vectors(const Operands& of, const void* out) {
  constexpr int64_t kVec = 16 / sizeof(T);
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (of.columns % kVec != 0 || !aligned(out)) return false;
  if (uses_u(of.message) && !aligned(of.x)) return false;
  const EdgeValues values = edge_values_of(of, true);
  if (values == EdgeValues::kFull) return aligned(of.e);
  return values != EdgeValues::kByGroup || of.group() % kVec == 0;
}

template <int kVec, int kItems>
LaneLaunch<kVec, kItems> lane_launch(const Operands& of) {
  LaneLaunch<kVec, kItems> launch;
  const int64_t per_lane = kVec * kItems;
  int32_t log2 = 0;
  while (log2 < 5 && (int64_t{1} << log2) * per_lane < of.columns) ++log2;
  launch.shape.lanes_log2 = log2;
  launch.shape.edge_values = edge_values_of(of, kVec > 1);
  const int64_t tile = (int64_t{1} << log2) * per_lane;
  const int64_t slices = (of.columns + tile - 1) / tile;
  PG_CHECK_ARG(slices <= 65535, "features of so many columns are not supported on a GPU");
  launch.slices = static_cast<unsigned>(slices);
  return launch;
}

/// Calls body(T{}, LaneLaunch<kVec, kItems>) for the widest vectors that the operands allow.
template <typename Body>
void with_lanes(DType dtype, const Operands& of, const void* out, const Body& body) {
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVec = 16 / sizeof(T);
    if (can_use_vectors<T>(of, out)) {
      body(element, lane_launch<kVec, 1>(of));
    } else {
      body(element, lane_launch<1, kNarrowItems>(of));
    }
  });
}

/// Column ids travel between lanes in 32 bits.
inline void check_columns(const CsrMatrix& rows) {
  PG_CHECK_ARG(rows.num_columns <= int64_t{1} << 32,
               "more than 2^32 nodes are not supported on a GPU");
}

}  // namespace peergraph
