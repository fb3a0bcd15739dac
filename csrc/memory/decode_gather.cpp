#include "memory/decode_gather.h"

#include <algorithm>
#include <cstring>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kGrainValues = 64 << 10;

template <typename Stored, typename T>
void decode_values(const char* row, int64_t first, int64_t count, T* out) {
  const Stored* values = reinterpret_cast<const Stored*>(row) + first;
  for (int64_t i = 0; i < count; ++i) narrow(widen(values[i]), &out[i]);
}

template <typename T>
void decode_scaled(const char* row, const float* scales, const RowCodec& codec, int64_t first,
                   int64_t count, T* out) {
  const int8_t* values = reinterpret_cast<const int8_t*>(row);
  for (int64_t c = first; c < first + count;) {
    const int64_t group = c / codec.group_columns;
    const int64_t end = std::min(first + count, (group + 1) * codec.group_columns);
    const float scale = scales[group];
    for (; c < end; ++c) narrow(static_cast<float>(values[c]) * scale, out++);
  }
}

template <typename T>
void decode_to(const char* row, const char* scales, const RowCodec& codec, int64_t first,
               int64_t count, T* out) {
  switch (codec.stored) {
    case StoredType::kFloat16:
      return decode_values<Half>(row, first, count, out);
    case StoredType::kBfloat16:
      return decode_values<Bfloat16>(row, first, count, out);
    case StoredType::kFloat8E4m3:
      return decode_values<Float8E4m3>(row, first, count, out);
    case StoredType::kFloat8E5m2:
      return decode_values<Float8E5m2>(row, first, count, out);
    case StoredType::kInt8:
      return decode_scaled(row, reinterpret_cast<const float*>(scales), codec, first, count, out);
  }
}

}  // namespace

void decode_columns(const char* row, const char* scales, const RowCodec& codec, int64_t first,
                    int64_t count, void* out) {
  with_dtype(codec.dtype, [&](auto type) {
    decode_to(row, scales, codec, first, count, static_cast<decltype(type)*>(out));
  });
}

void decode_gather_cpu(const TableView& table, const TableView* scales, const RowCodec& codec,
                       const IdList& ids, char* out, int num_threads) {
  check_ids(ids, table.map.rows, num_threads);
  if (codec.columns == 0) return;
  with_dtype(codec.dtype, [&](auto type) {
    using T = decltype(type);
    T* rows = reinterpret_cast<T*>(out);
    const int64_t grain = std::max<int64_t>(1, kGrainValues / codec.columns);
    parallel_for(ids.count, grain, num_threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* target = rows + checked_out_row(ids, i) * codec.columns;
        const int64_t id = checked_id(ids, i, table.map.rows);
        if (id == kPadding) {
          std::memset(target, 0, codec.columns * sizeof(T));
          continue;
        }
        const char* row = table.row(checked_row(table, id));
        const char* own =
            scales == nullptr ? row + codec.scales_begin : scales->row(checked_row(*scales, id));
        decode_to(row, own, codec, 0, codec.columns, target);
      }
    });
  });
}

}  // namespace peergraph
