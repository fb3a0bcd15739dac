// Gathers rows with narrow storage, and widens their values in registers (decode_gather.h).
//
// The tiles and groups of lanes are those of copy_rows (gather.cu). A lane reads a pack of adjacent
// stored values, and its scale where there are scales, and writes the pack in the users' dtype: a
// pack of four values of float32 is written as 16 bytes.
#include <algorithm>
#include <type_traits>

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

/// `Scales` is a TableView if the scales are apart, otherwise ScalesInRows.
template <typename T, StoredKind kKind, int kPack, typename Scales>
__global__ void __launch_bounds__(kBlockThreads, 3)
    decode_rows(const __grid_constant__ TableView table, const __grid_constant__ Scales scales,
                const __grid_constant__ RowCodec codec, const __grid_constant__ IdList ids, T* out,
                CopyShape shape, ErrorSlot errors) {
  constexpr bool kApart = std::is_same_v<Scales, TableView>;
  const int lane = lane_id();
  const int lanes_per_row = 1 << shape.lanes_per_row_log2;
  const int rows_per_step = kWarpSize >> shape.lanes_per_row_log2;
  const int row_of_lane = lane >> shape.lanes_per_row_log2;
  const int first_pack = lane & (lanes_per_row - 1);
  const WarpShare share = share_of_warp<true>(ids, shape);

  for (int64_t first = share.first; first < share.end; first += share.step) {
    const int count =
        static_cast<int>(share.end - first < share.tile_rows ? share.end - first : share.tile_rows);
    const char* found = lane < count ? find_row(table, ids, first + lane, errors) : nullptr;
    const char* found_scales = found;
    if constexpr (kApart) {
      if (found != nullptr) found_scales = scales.find(ids.id(first + lane));
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
void launch(const TableView& table, const Scales& scales, const RowCodec& codec, const IdList& ids,
            T* out, int device, cudaStream_t stream) {
  const auto kernel = decode_rows<T, kKind, kPack, Scales>;
  // Queried once, since a query costs as much as a launch. The GPUs of a host are of one model.
  static const int64_t resident = resident_blocks(kernel, device);
  const int64_t max_blocks = ids.max_blocks == 0 ? resident : std::min(resident, ids.max_blocks);
  CopyShape shape =
      make_shape(codec.columns / kPack, ids.count, max_blocks * kWarpsPerBlock, kRowsInFlight);
  unsigned blocks = grid_for(ids.count, int64_t{kWarpsPerBlock} * shape.tile_rows, max_blocks);
  if (ids.host_begin != nullptr) {
    shape.host_blocks = host_blocks(table);
    blocks += shape.host_blocks;
  }
  kernel<<<blocks, kBlockThreads, 0, stream>>>(table, scales, codec, ids, out, shape,
                                               error_slot(device));
  PG_LAUNCH_CHECK("decode_rows");
}

/// Launches with packs of four values if the alignment of rows, scales and result allows it.
template <typename T, StoredKind kKind, typename Scales>
void dispatch(const TableView& table, const Scales& scales, const RowCodec& codec,
              const IdList& ids, T* out, int device, cudaStream_t stream) {
  constexpr int kPack = 4;
  const uint64_t result_bits = reinterpret_cast<uintptr_t>(out);
  const bool in_packs = codec.columns % kPack == 0 && codec.group_columns % kPack == 0 &&
                        alignment_bits(table) % (kPack * bytes_of(kKind)) == 0 &&
                        result_bits % alignof(Pack<T, kPack>) == 0;
  if (in_packs) {
    launch<T, kKind, kPack>(table, scales, codec, ids, out, device, stream);
  } else {
    launch<T, kKind, 1>(table, scales, codec, ids, out, device, stream);
  }
}

}  // namespace

void decode_gather_cuda(const TableView& table, const TableView* scales, const RowCodec& codec,
                        const IdList& ids, char* out, int device, uintptr_t stream_address) {
  raise_pending(device);
  if (ids.count == 0 || codec.columns == 0) return;
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  with_dtype(codec.dtype, [&](auto type) {
    using T = decltype(type);
    T* rows = reinterpret_cast<T*>(out);
    if (scales != nullptr) {
      dispatch<T, StoredKind::kInt8>(table, *scales, codec, ids, rows, device, stream);
      return;
    }
    with_stored_kind(codec.stored, [&](auto kind) {
      dispatch<T, decltype(kind)::value>(table, ScalesInRows{}, codec, ids, rows, device, stream);
    });
  });
}

}  // namespace peergraph
