// The values that a lane reads of a row of x, as rows are stored: in the operation's elements, or
// in fewer bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "aggregate/message.h"
#include "aggregate/vector_access.cuh"
#include "common/element.h"
#include "memory/stored_values.cuh"

namespace peergraph {

/// Rows are in a matrix, or at the addresses Operands::x_rows. There they have the operation's
/// elements, or the stored values that Operands::codec describes. kInt8Apart: int8 with the scales
/// at Operands::scale_rows.
enum class RowLayout { kDense, kIndirect, kFloat16, kFloat8, kInt8, kInt8Apart };

constexpr bool is_narrow(RowLayout layout) {
  return layout != RowLayout::kDense && layout != RowLayout::kIndirect;
}

/// The layout of narrow rows with values of a kind.
constexpr RowLayout layout_of(StoredKind kind) {
  return kind == StoredKind::kFloat16  ? RowLayout::kFloat16
         : kind == StoredKind::kFloat8 ? RowLayout::kFloat8
                                       : RowLayout::kInt8;
}

constexpr StoredKind kind_of(RowLayout layout) {
  return layout == RowLayout::kFloat16  ? StoredKind::kFloat16
         : layout == RowLayout::kFloat8 ? StoredKind::kFloat8
                                        : StoredKind::kInt8;
}

/// Calls body(std::integral_constant<RowLayout, the layout of the narrow rows>{}).
template <typename Body>
void with_narrow_layout(const Operands& operands, const Body& body) {
  if (operands.has_scales_apart())
    return body(std::integral_constant<RowLayout, RowLayout::kInt8Apart>{});
  with_stored_kind(operands.codec.stored, [&](auto kind) {
    body(std::integral_constant<RowLayout, layout_of(decltype(kind)::value)>{});
  });
}

/// Values of a vector of a narrow row: 16 bytes of it, or 8. With more, the sums would take the
/// registers of the rows in flight.
constexpr int kNarrowVec = 8;

/// kVec adjacent values of a row.
template <RowLayout kLayout, typename T, int kVec, bool = is_narrow(kLayout)>
class RowVector {
 public:
  using Value = AccumulatorOf<T>;

  /// Reads the values from `column` on.
  __device__ __forceinline__ void load_here(const char* row, int64_t column, const char*) {
    pack_ = load_pack_here<T, kVec>(reinterpret_cast<const T*>(row) + column);
  }

  __device__ __forceinline__ void widen_to(const RowCodec&, Value (&out)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) out[i] = widen(pack_.values[i]);
  }

 private:
  Pack<T, kVec> pack_;
};

template <RowLayout kLayout, typename T, int kVec>
class RowVector<kLayout, T, kVec, true> {
 public:
  using Value = AccumulatorOf<T>;

  /// `scale`: where the scale of these columns is.
  __device__ __forceinline__ void load_here(const char* row, int64_t column, const char* scale) {
    stored_.load_here(row, column, scale);
  }

  /// The values are those that a gather of the row returns.
  __device__ __forceinline__ void widen_to(const RowCodec& codec, Value (&out)[kVec]) const {
    T values[kVec];
    stored_.widen_to(codec.stored, values);
#pragma unroll
    for (int i = 0; i < kVec; ++i) out[i] = widen(values[i]);
  }

 private:
  StoredValues<kind_of(kLayout), kVec> stored_;
};

}  // namespace peergraph
