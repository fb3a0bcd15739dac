// Gathers rows with narrow storage, and widens their values in registers (decode_gather.h).
//
// The tiles and groups of lanes are those of copy_rows (gather.cu). A lane reads a pack of adjacent
// stored values, and its scale where there are scales, and writes the pack in the users' dtype: a
// pack of four values of float32 is written as 16 bytes.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "memory/decode_gather.h"
#include "memory/row_tiles.cuh"
#include "memory/stored_values.cuh"

namespace peergraph {
namespace {

// Packs have few bytes, so a lane reads as many rows at once as copy_rows does with narrow vectors.
constexpr int kRowsInFlight = 8;

/// Values of the result that are written at once, in vectors of 16 bytes.
template <typename T, int kPack>
struct alignas(sizeof(T) * kPack < 16 ? sizeof(T) * kPack : 16) Pack {
  T values[kPack];
};

/// Writes past the caches as far as possible: nobody reads the result soon.
template <typename T, int kPack>
__device__ __forceinline__ void store_once(Pack<T, kPack>* at, const Pack<T, kPack>& pack) {
  constexpr int kVectors = sizeof(pack) / 16;
  if constexpr (kVectors == 0) {
    *at = pack;
  } else {
    int4 vectors[kVectors];
    memcpy(vectors, &pack, sizeof(pack));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) __stcs(reinterpret_cast<int4*>(at) + i, vectors[i]);
  }
}

/// In place of a table of scales, if rows have their scales.
struct ScalesInRows {};

/// Rows of a table that are decoded. `Scales` is a TableView if the scales are apart, otherwise
/// ScalesInRows.
template <typename Scales>
struct RowDecode {
  TableView table;
  Scales scales;
  RowCodec codec;
  IdList ids;
  char* out;
  CopyShape shape;
};

template <typename T, StoredKind kKind, int kPack, typename Scales, typename Reads>
__global__ void __launch_bounds__(kBlockThreads, 3)
    decode_rows(const __grid_constant__ Reads reads, ErrorSlot errors) {
  constexpr bool kApart = std::is_same_v<Scales, TableView>;
  const ItemPart<RowDecode<Scales>> part = reads.part();
  const TableView& table = part.item.table;
  const RowCodec& codec = part.item.codec;
  const IdList& ids = part.item.ids;
  const CopyShape& shape = part.item.shape;
  T* const out = reinterpret_cast<T*>(part.item.out);
  const int lane = lane_id();
  const int lanes_per_row = 1 << shape.lanes_per_row_log2;
  const int rows_per_step = kWarpSize >> shape.lanes_per_row_log2;
  const int row_of_lane = lane >> shape.lanes_per_row_log2;
  const int first_pack = lane & (lanes_per_row - 1);
  const WarpShare share = share_of_warp<true>(part.item, part);

  for (int64_t first = share.first; first < share.end; first += share.step) {
    const int count =
        static_cast<int>(share.end - first < share.tile_rows ? share.end - first : share.tile_rows);
    const char* found = lane < count ? find_row(table, ids, first + lane, errors) : nullptr;
    const char* found_scales = found;
    if constexpr (kApart) {
      if (found != nullptr) found_scales = part.item.scales.find(ids.id(first + lane));
    }
    __syncwarp();

    for (int step = 0; step < count; step += rows_per_step * kRowsInFlight) {
      const char* rows[kRowsInFlight];
      const char* scale_rows[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        const int from = (step + k * rows_per_step + row_of_lane) % kWarpSize;
        rows[k] = from_lane(const_cast<char*>(found), from);
        scale_rows[k] = kApart ? from_lane(const_cast<char*>(found_scales), from) : rows[k];
      }

      for (int64_t pack = first_pack; pack < shape.vectors_per_row; pack += lanes_per_row) {
        const int64_t scale_at = scale_of_column(codec, pack * kPack);
        StoredValues<kKind, kPack> stored[kRowsInFlight];
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          const bool wanted = step + k * rows_per_step + row_of_lane < count && rows[k] != nullptr;
          stored[k].load_if(wanted, rows[k], pack * kPack, scale_rows[k] + scale_at);
        }
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          const int row = step + k * rows_per_step + row_of_lane;
          Pack<T, kPack> wide;
          stored[k].widen_to(codec.stored, wide.values);
          if (row >= count) continue;
          T* target = out + ids.out_row(first + row) * codec.columns;
          store_once(reinterpret_cast<Pack<T, kPack>*>(target) + pack, wide);
        }
      }
    }
  }
}

template <typename T, StoredKind kKind, int kPack, typename Scales>
void launch(std::vector<RowDecode<Scales>>& reads, const Allocate& allocate, int device,
            cudaStream_t stream) {
  if (reads.empty()) return;
  // Queried once, since a query costs as much as a launch. The GPUs of a host are of one model.
  static const int64_t resident =
      resident_blocks(decode_rows<T, kKind, kPack, Scales, OneItem<RowDecode<Scales>>>, device);
  const std::vector<unsigned> blocks =
      share_blocks(reads, resident, [](RowDecode<Scales>& each, int64_t of) {
        each.shape = make_shape(each.codec.columns / kPack, each.ids.count, of * kWarpsPerBlock,
                                kRowsInFlight);
        if (each.ids.host_begin != nullptr) each.shape.host_blocks = host_blocks(each.table);
      });
  const ErrorSlot errors = error_slot(device);
  launch_items(reads, blocks, allocate, stream, [&](const auto& items, unsigned num_blocks) {
    decode_rows<T, kKind, kPack, Scales><<<num_blocks, kBlockThreads, 0, stream>>>(items, errors);
    PG_LAUNCH_CHECK("decode_rows");
  });
}

/// Launches with packs of four values where the alignment of rows, scales and result allows it.
template <typename T, StoredKind kKind, typename Scales>
void dispatch(const std::vector<RowDecode<Scales>>& reads, const Allocate& allocate, int device,
              cudaStream_t stream) {
  constexpr int kPack = 4;
  std::vector<RowDecode<Scales>> in_packs, single;
  for (const RowDecode<Scales>& each : reads) {
    const uint64_t result_bits = reinterpret_cast<uintptr_t>(each.out);
    const bool fits_packs = each.codec.columns % kPack == 0 &&
                            each.codec.group_columns % kPack == 0 &&
                            alignment_bits(each.table) % (kPack * bytes_of(kKind)) == 0 &&
                            result_bits % alignof(Pack<T, kPack>) == 0;
    (fits_packs ? in_packs : single).push_back(each);
  }
  launch<T, kKind, kPack>(in_packs, allocate, device, stream);
  launch<T, kKind, 1>(single, allocate, device, stream);
}

/// Whether one kernel decodes the rows of both.
bool have_same_kinds(const DecodeRead& a, const DecodeRead& b) {
  return a.codec.dtype == b.codec.dtype && a.codec.stored == b.codec.stored &&
         (a.scales == nullptr) == (b.scales == nullptr);
}

/// Launches for reads of the same kinds.
void launch_those(const std::vector<DecodeRead>& reads, const Allocate& allocate, int device,
                  cudaStream_t stream) {
  const DecodeRead& first = reads.front();
  with_dtype(first.codec.dtype, [&](auto type) {
    using T = decltype(type);
    if (first.scales != nullptr) {
      std::vector<RowDecode<TableView>> apart;
      for (const DecodeRead& each : reads)
        apart.push_back({*each.table, *each.scales, each.codec, each.ids, each.out, {}});
      dispatch<T, StoredKind::kInt8>(apart, allocate, device, stream);
      return;
    }
    std::vector<RowDecode<ScalesInRows>> in_rows;
    for (const DecodeRead& each : reads)
      in_rows.push_back({*each.table, {}, each.codec, each.ids, each.out, {}});
    with_stored_kind(first.codec.stored, [&](auto kind) {
      dispatch<T, decltype(kind)::value>(in_rows, allocate, device, stream);
    });
  });
}

}  // namespace

void decode_gather_cuda(const std::vector<DecodeRead>& reads, const Allocate& allocate, int device,
                        uintptr_t stream_address) {
  raise_pending(device);
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  std::vector<std::vector<DecodeRead>> by_kinds;
  for (const DecodeRead& read : reads) {
    if (read.ids.count == 0 || read.codec.columns == 0) continue;
    const auto same = std::find_if(by_kinds.begin(), by_kinds.end(), [&](const auto& others) {
      return have_same_kinds(others.front(), read);
    });
    if (same == by_kinds.end())
      by_kinds.push_back({read});
    else
      same->push_back(read);
  }
  for (const auto& those : by_kinds) launch_those(those, allocate, device, stream);
}

}  // namespace peergraph
