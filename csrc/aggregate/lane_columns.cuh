// The assignment of a message's columns to the lanes of a warp, and the reading of messages:
// several edges at a time, each by as many lanes as its columns need, with enough rows in flight to
// cover the latency of memory (MGG 3.3).
#pragma once

#include <cstdint>
#include <type_traits>

#include "aggregate/message.h"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/row_vector.cuh"
#include "aggregate/vector_access.cuh"
#include "common/element.h"

namespace peergraph {

/// The number of values of e that an edge has for the columns of a lane.
enum class EdgeValues : int32_t { kNone, kOne, kByGroup, kFull };

/// Launch parameters: 2^lanes_log2 lanes work on an edge, kWarpSize / lanes edges at a time.
struct LaneShape {
  int32_t lanes_log2 = 0;
  EdgeValues edge_values = EdgeValues::kNone;
};

/// The columns of a lane: kItems vectors, strided by the lanes of an edge.
template <int kVec, int kItems>
struct LaneColumns {
  LaneShape shape;
  int lanes;   // for an edge
  int groups;  // edges at a time
  int group;   // this lane's edge among them
  int64_t columns[kItems];
  bool active[kItems];
  int64_t e_columns[kItems];
  int64_t scales_at[kItems];  // bytes of a narrow row, or of its row of scales

  __device__ __forceinline__ LaneColumns(const LaneShape& shape, const Operands& operands)
      : shape(shape) {
    lanes = 1 << shape.lanes_log2;
    groups = kWarpSize >> shape.lanes_log2;
    group = lane_id() >> shape.lanes_log2;
    const int lane = lane_id() & (lanes - 1);
    const int64_t first = static_cast<int64_t>(blockIdx.y) * lanes * kVec * kItems;
    const bool by_group = shape.edge_values == EdgeValues::kByGroup;
    const int64_t width = operands.group();
#pragma unroll
    for (int m = 0; m < kItems; ++m) {
      columns[m] = first + static_cast<int64_t>(m * lanes + lane) * kVec;
      active[m] = columns[m] < operands.columns;
      e_columns[m] = by_group ? columns[m] / width : columns[m];
      scales_at[m] = scale_of_column(operands.codec, active[m] ? columns[m] : 0);
    }
  }
};

/// The kinds of messages. Frequent messages have separate code, the others are kGeneric. kScale: u
/// times the single value of the edge.
enum class MessageKind { kCopyU, kScale, kMul, kGeneric };

template <MessageKind kKind, typename Value>
__device__ __forceinline__ Value apply_kind(Message message, Value u, Value e) {
  if constexpr (kKind == MessageKind::kCopyU) return u;
  if constexpr (kKind == MessageKind::kMul || kKind == MessageKind::kScale) return u * e;
  return apply(message, u, e);
}

/// The values of a later edge that a lane has read: its column, and its value if messages are
/// scaled.
template <typename T>
struct EdgeAhead {
  unsigned column = 0;
  T scale = {};
};

/// Reads the edge at `position` in advance.
template <MessageKind kKind, typename T>
__device__ __forceinline__ void read_ahead(const CsrMatrix& matrix, const Operands& operands,
                                           int64_t position, EdgeAhead<T>* ahead) {
  ahead->column = static_cast<unsigned>(matrix.column(position));
  if constexpr (kKind == MessageKind::kScale)
    ahead->scale = static_cast<const T*>(operands.e)[matrix.edge(position)];
}

/// Calls visit(position, item, i, value) for this lane's values of the messages of some edges:
/// value i of each vector. Spans count from `first_edge`. `ahead` holds the first kWarpSize edges,
/// one in each lane, and afterwards the first edges of the span that following() returns.
template <MessageKind kKind, RowLayout kLayout, int kInFlight, typename T, int kVec, int kItems,
          typename Following, typename Visit>
__device__ __forceinline__ void each_message(const CsrMatrix& matrix, const Operands& operands,
                                             const LaneColumns<kVec, kItems>& lane,
                                             int64_t first_edge, EdgeSpan part,
                                             const Following& following, EdgeAhead<T>* ahead,
                                             const Visit& visit) {
  using Value = AccumulatorOf<T>;
  constexpr bool kByAddress = kLayout != RowLayout::kDense;
  constexpr bool kApart = kLayout == RowLayout::kInt8Apart;
  constexpr bool kScales = kKind == MessageKind::kScale;
  constexpr bool kMayUseE = kKind != MessageKind::kCopyU && !kScales;
  const bool reads_x = kKind != MessageKind::kGeneric || uses_u(operands.message);
  const char* x = static_cast<const char*>(operands.x);
  const T* e = static_cast<const T*>(operands.e);
  const auto stride = static_cast<uint32_t>(operands.row_stride() * sizeof(T));
  const int own_lane = lane_id();
  const EdgeValues mode = kMayUseE ? lane.shape.edge_values : EdgeValues::kNone;

  const auto read_next = [&](EdgeSpan span) {
    if (span.begin + own_lane < span.end)
      read_ahead<kKind>(matrix, operands, first_edge + span.begin + own_lane, ahead);
  };
  if (part.begin == part.end) read_next(following());
  // Each lane reads the ids of one edge, while the ids of the next kWarpSize edges are being
  // loaded.
  for (uint32_t first = part.begin; first < part.end; first += kWarpSize) {
    const int count = static_cast<int>(min(part.end - first, uint32_t{kWarpSize}));
    const unsigned own_column = ahead->column;
    unsigned long long own_row = 0;
    if constexpr (kByAddress) {
      if (reads_x && own_lane < count)
        own_row = static_cast<unsigned long long>(operands.x_rows[own_column]);
    }
    unsigned long long own_scales = 0;
    if constexpr (kApart) {
      if (own_lane < count)
        own_scales = static_cast<unsigned long long>(operands.scale_rows[own_column]);
    }
    int64_t own_edge = 0;
    Value own_weight = widen(ahead->scale);
    const bool is_last = part.end - first <= kWarpSize;
    read_next(is_last ? following() : EdgeSpan{first + kWarpSize, part.end});
    if (kMayUseE && mode != EdgeValues::kNone && own_lane < count) {
      own_edge = matrix.edge(first_edge + first + own_lane);
      if (mode == EdgeValues::kOne) own_weight = widen(e[own_edge]);
    }

    unsigned rows_found = 0;
    if constexpr (kByAddress) {
      rows_found = __ballot_sync(kFullMask, own_row != 0);
      if (rows_found == 0) continue;
    }
    const int a_row_found = __ffs(static_cast<int>(rows_found)) - 1;

    // Reads kCount edges for each group of lanes before it uses any of them.
    const auto visit_edges = [&](auto count_of_group, int step) {
      constexpr int kCount = decltype(count_of_group)::value;
      RowVector<kLayout, T, kVec> us[kCount][kItems];
      Pack<T, kVec> es[kMayUseE ? kCount : 1][kItems] = {};
      if (reads_x) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const int edge = step + k * lane.groups + lane.group;
          // Loads have no condition: with one, nvcc copies each result behind its load, which
          // waits for it. Groups without an edge, or without its row, read another one's again.
          const char* row;
          const char* scales;
          if constexpr (kByAddress) {
            const bool found = edge < kWarpSize && (rows_found >> edge & 1) != 0;
            const int from = found ? edge : a_row_found;
            row = reinterpret_cast<const char*>(__shfl_sync(kFullMask, own_row, from));
            scales = kApart
                         ? reinterpret_cast<const char*>(__shfl_sync(kFullMask, own_scales, from))
                         : row;
          } else {
            const unsigned column = __shfl_sync(kFullMask, own_column, min(edge, count - 1));
            row = scales = x + uint64_t{column} * stride;
          }
#pragma unroll
          for (int m = 0; m < kItems; ++m)
            us[k][m].load_here(row, lane.active[m] ? lane.columns[m] : 0,
                               scales + lane.scales_at[m]);
        }
      }
      Value weights[kMayUseE || kScales ? kCount : 1] = {};
      if (kScales || (kMayUseE && mode == EdgeValues::kOne)) {
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          weights[k] = __shfl_sync(kFullMask, own_weight, step + k * lane.groups + lane.group);
      } else if (kMayUseE && mode != EdgeValues::kNone) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const int edge = step + k * lane.groups + lane.group;
          const int64_t id = __shfl_sync(kFullMask, own_edge, edge);
          const T* row = e + id * operands.e_columns;
#pragma unroll
          for (int m = 0; m < kItems; ++m) {
            if (edge >= count || !lane.active[m]) continue;
            if constexpr (!is_narrow(kLayout) || kVec == 1) {
              if (mode == EdgeValues::kFull) {
                es[k][m] = load_pack<T, kVec>(row + lane.e_columns[m]);
                continue;
              }
            }
            es[k][m].values[0] = row[lane.e_columns[m]];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int edge = step + k * lane.groups + lane.group;
        if (edge >= count) continue;
        if constexpr (kByAddress) {
          if ((rows_found >> edge & 1) == 0) continue;  // the id is out of range
        }
#pragma unroll
        for (int m = 0; m < kItems; ++m) {
          Value u[kVec] = {};
          if (reads_x) us[k][m].widen_to(operands.codec, u);
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
            visit(first_edge + first + edge, m, i,
                  apply_kind<kKind>(operands.message, u[i], weight));
          }
        }
      }
    };
    for (int step = 0; step < count;) {
      const int left = count - step;
      if (left > lane.groups * kInFlight / 2) {
        visit_edges(std::integral_constant<int, kInFlight>{}, step);
        step += lane.groups * kInFlight;
      } else if (left > lane.groups * kInFlight / 4) {
        visit_edges(std::integral_constant<int, kInFlight / 2>{}, step);
        step += lane.groups * kInFlight / 2;
      } else {
        visit_edges(std::integral_constant<int, kInFlight / 4>{}, step);
        step += lane.groups * kInFlight / 4;
      }
    }
  }
}

/// As above, for a part that is not followed by another one.
template <MessageKind kKind, RowLayout kLayout, int kInFlight, typename T, int kVec, int kItems,
          typename Visit>
__device__ __forceinline__ void each_message(const CsrMatrix& matrix, const Operands& operands,
                                             const LaneColumns<kVec, kItems>& lane,
                                             const RowPart& part, const Visit& visit) {
  const EdgeSpan span{0, static_cast<uint32_t>(part.end - part.begin)};
  EdgeAhead<T> ahead;
  if (lane_id() < span.end) read_ahead<kKind>(matrix, operands, part.begin + lane_id(), &ahead);
  each_message<kKind, kLayout, kInFlight, T>(
      matrix, operands, lane, part.begin, span, [] { return EdgeSpan{0, 0}; }, &ahead, visit);
}

/// The launch parameters of a kernel with kItems vectors of kVec values per lane.
template <int kVec, int kItems>
struct LaneLaunch {
  LaneShape shape;
  unsigned slices;  // of the columns, gridDim.y
};

constexpr int kNarrowItems = 4;

inline EdgeValues edge_values_of(const Operands& operands, bool vectors) {
  if (!uses_e(operands.message)) return EdgeValues::kNone;
  if (operands.e_columns == 1) return EdgeValues::kOne;
  return vectors && operands.e_columns == operands.columns ? EdgeValues::kFull
                                                           : EdgeValues::kByGroup;
}

/// Whether rows of x, of e and of the output can be read 16 bytes at a time.
template <typename T>
bool can_use_vectors(const Operands& operands, const void* out) {
  constexpr int64_t kVec = 16 / sizeof(T);
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (operands.columns % kVec != 0 || !aligned(out)) return false;
  if (uses_u(operands.message) && !aligned(operands.x)) return false;
  const EdgeValues values = edge_values_of(operands, true);
  if (values == EdgeValues::kFull) return aligned(operands.e);
  return values != EdgeValues::kByGroup || operands.group() % kVec == 0;
}

/// Whether narrow rows can be read in vectors of kNarrowVec values; the last vector of a row may
/// end in its scales or its padding, which rows with scales apart do not have.
inline bool can_use_narrow_vectors(const Operands& operands) {
  const RowCodec& codec = operands.codec;
  const int64_t bytes = kNarrowVec * codec.stored_bytes();
  const bool one_scale = codec.num_scales() <= 1 || codec.group_columns % kNarrowVec == 0;
  const EdgeValues values = edge_values_of(operands, false);
  const bool one_weight = values != EdgeValues::kByGroup || operands.group() % kNarrowVec == 0;
  const bool whole = !operands.has_scales_apart() || operands.columns % kNarrowVec == 0;
  return one_scale && one_weight && whole && operands.columns >= kNarrowVec &&
         reinterpret_cast<uintptr_t>(operands.x) % bytes == 0;
}

template <int kVec, int kItems>
LaneLaunch<kVec, kItems> lane_launch(const Operands& operands) {
  LaneLaunch<kVec, kItems> launch;
  const int64_t per_lane = kVec * kItems;
  int32_t log2 = 0;
  while (log2 < 5 && (int64_t{1} << log2) * per_lane < operands.columns) ++log2;
  launch.shape.lanes_log2 = log2;
  launch.shape.edge_values = edge_values_of(operands, kVec > 1 && !operands.is_narrow());
  const int64_t tile = (int64_t{1} << log2) * per_lane;
  const int64_t slices = (operands.columns + tile - 1) / tile;
  PG_CHECK_ARG(slices <= 65535, "features of so many columns are not supported on a GPU");
  launch.slices = static_cast<unsigned>(slices);
  return launch;
}

/// Calls body(T{}, LaneLaunch<kVec, kItems>) for the widest vectors that the operands allow.
template <typename Body>
void with_lanes(DType dtype, const Operands& operands, const void* out, const Body& body) {
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVec = 16 / sizeof(T);
    if (can_use_vectors<T>(operands, out)) {
      body(element, lane_launch<kVec, 1>(operands));
    } else {
      body(element, lane_launch<1, kNarrowItems>(operands));
    }
  });
}

/// Calls body(std::integral_constant<RowLayout, layout>{}, T{}, LaneLaunch<kVec, kItems>) for
/// narrow rows.
template <typename Body>
void with_narrow_lanes(DType dtype, const Operands& operands, const Body& body) {
  with_narrow_layout(operands, [&](auto layout) {
    with_dtype(dtype, [&](auto element) {
      if (can_use_narrow_vectors(operands)) {
        body(layout, element, lane_launch<kNarrowVec, 1>(operands));
      } else {
        body(layout, element, lane_launch<1, kNarrowItems>(operands));
      }
    });
  });
}

/// Column ids travel between lanes in 32 bits.
inline void check_columns(const CsrMatrix& matrix) {
  PG_CHECK_ARG(matrix.num_columns <= int64_t{1} << 32,
               "more than 2^32 nodes are not supported on a GPU");
}

}  // namespace peergraph
