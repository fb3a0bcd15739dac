#include "memory/decode_gather.h"

#include <algorithm>
#include <cstring>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kGrainValues = 64 << 10;

template <typename Stored, typename T>
void decode_values(const char* row, int64_t columns, T* out) {
  const Stored* values = reinterpret_cast<const Stored*>(row);
  for (int64_t c = 0; c < columns; ++c) narrow(widen(values[c]), &out[c]);
}

template <typename T>
void decode_scaled(const char* row, const RowCodec& codec, T* out) {
  const int8_t* values = reinterpret_cast<const int8_t*>(row);
  const float* scales = reinterpret_cast<const float*>(row + codec.scales_begin);
  for (int64_t begin = 0; begin < codec.columns; begin += codec.group_columns) {
    const float scale = *scales++;
    const int64_t end = std::min(codec.columns, begin + codec.group_columns);
    for (int64_t c = begin; c < end; ++c) narrow(static_cast<float>(values[c]) * scale, &out[c]);
  }
}

template <typename T>
void decode_row(const char* row, const RowCodec& codec, T* out) {
  switch (codec.stored) {
    case StoredType::kFloat16:
      return decode_values<Half>(row, codec.columns, out);
    case StoredType::kBfloat16:
      return decode_values<Bfloat16>(row, codec.columns, out);
    case StoredType::kFloat8E4m3:
      return decode_values<Float8E4m3>(row, codec.columns, out);
    case StoredType::kFloat8E5m2:
      return decode_values<Float8E5m2>(row, codec.columns, out);
    case StoredType::kInt8:
      return decode_scaled(row, codec, out);
  }
}

}  // namespace

void decode_gather_cpu(const TableView& table, const RowCodec& codec, const IdList& ids, char* out,
                       int num_threads) {
  check_ids(ids, table.map.rows, num_threads);
  if (codec.columns == 0) return;
  with_dtype(codec.dtype, [&](auto type) {
    using T = decltype(type);
    T* rows = reinterpret_cast<T*>(out);
    const int64_t grain = std::max<int64_t>(1, kGrainValues / codec.columns);
    parallel_for(ids.count, grain, num_threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* target = rows + ids.out_row(i) * codec.columns;
        if (ids.id(i) == kPadding)
          std::memset(target, 0, codec.columns * sizeof(T));
        else
          decode_row(table.find(ids.id(i)), codec, target);
      }
    });
  });
}

}  // namespace peergraph
