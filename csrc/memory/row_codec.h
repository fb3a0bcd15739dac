// The format of rows with narrow storage, and the widening of one stored value.
#pragma once

#include <cstdint>

#include "common/element.h"
#include "common/float8.h"
#include "common/host_device.h"

namespace peergraph {

enum class StoredType : int32_t {
  kFloat16 = 0,
  kBfloat16 = 1,
  kFloat8E4m3 = 2,
  kFloat8E5m2 = 3,
  kInt8 = 4
};

/// A stored row is its values one after the other, then, for int8, a float32 scale for each group
/// of columns, then padding up to TableView::row_bytes. If the scales are apart, the row has only
/// the values, and the scales of the row are a row of another table.
struct RowCodec {
  StoredType stored = StoredType::kFloat16;
  DType dtype = DType::kFloat32;  // the dtype that users see
  int64_t columns = 0;            // the number of values in a row
  int64_t group_columns = 0;      // adjacent columns that share a scale; 0: there are no scales
  // Offset of the scales in bytes, a multiple of 4: in the row, or 0 in the row of scales.
  int64_t scales_begin = 0;

  int64_t stored_bytes() const {
    return stored == StoredType::kFloat16 || stored == StoredType::kBfloat16 ? 2 : 1;
  }

  int64_t num_scales() const {
    return group_columns == 0 ? 0 : (columns + group_columns - 1) / group_columns;
  }

  /// The same format with the scales apart.
  RowCodec apart() const { return {stored, dtype, columns, group_columns, 0}; }

  /// The bytes of a row with its scales, without padding.
  int64_t used_bytes() const {
    return group_columns == 0 ? columns * stored_bytes() : scales_begin + 4 * num_scales();
  }
};

/// Widens a stored value of kBytes bytes, 1 or 2. Does not multiply it by its scale.
template <int kBytes>
PG_HD float widen_stored(StoredType stored, uint32_t bits) {
  if (kBytes == 2) {
    const uint16_t value = static_cast<uint16_t>(bits);
    return stored == StoredType::kFloat16 ? widen(Half{value}) : widen(Bfloat16{value});
  }
  const uint8_t value = static_cast<uint8_t>(bits);
  if (stored == StoredType::kFloat8E4m3) return widen(Float8E4m3{value});
  if (stored == StoredType::kFloat8E5m2) return widen(Float8E5m2{value});
  return static_cast<float>(static_cast<int8_t>(value));
}

}  // namespace peergraph
