// The gather that widens stored values in registers while it copies rows (decode_gather.h).
//
// The tiles and groups of lanes are those of copy_rows (gather.cu). A lane reads a pack of adjacent
// stored values, and its scale where there are scales, and writes the pack in the users' dtype: a
// pack of four values of float32 is written as 16 bytes.
#include <algorithm>

#include "common/check.h"
#include "memory/decode_gather.h"
#include "memory/row_tiles.cuh"

namespace peergraph {
namespace {

// A pack has few bytes: as many rows in flight as copy_rows has of narrow vectors.
constexpr int kRowsInFlight = 8;

template <int kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = uint16_t;
};

/// Adjacent values, read or written at once.
template <typename T, int kPack>
struct alignas(sizeof(T) * kPack < 16 ? sizeof(T) * kPack : 16) Pack {
  T values[kPack];
};

template <typename T, int kBytes, int kPack>
__device__ __forceinline__ Pack<T, kPack> widen_pack(
    StoredType stored, const Pack<typename UnsignedOf<kBytes>::type, kPack>& raw, float scale) {
  Pack<T, kPack> wide;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const float value = widen_stored<kBytes>(stored, raw.values[j]);
    narrow(kBytes == 1 && stored == StoredType::kInt8 ? value * scale : value, &wide.values[j]);
  }
  return wide;
}

template <typename T, int kBytes, int kPack>
__global__ void __launch_bounds__(kBlockThreads, 3)
    decode_rows(const __grid_constant__ TableView table, const RowCodec codec,
                const __grid_constant__ IdList ids, T* out, CopyShape shape, ErrorSlot errors) {
  using Stored = Pack<typename UnsignedOf<kBytes>::type, kPack>;
  const int lane = lane_id();
  const int lanes_per_row = 1 << shape.lanes_per_row_log2;
  const int rows_per_step = kWarpSize >> shape.lanes_per_row_log2;
  const int row_of_lane = lane >> shape.lanes_per_row_log2;
  const int first_pack = lane & (lanes_per_row - 1);
  const uint32_t group_columns = static_cast<uint32_t>(codec.group_columns);
  const bool has_groups = codec.group_columns < codec.columns;
  const WarpShare share = share_of_warp<false>(ids, shape);

  for (int64_t first = share.first; first < share.end; first += share.step) {
    const int count =
        static_cast<int>(share.end - first < share.tile_rows ? share.end - first : share.tile_rows);
    const char* found = lane < count ? find_row(table, ids, first + lane, errors) : nullptr;
    __syncwarp();

    for (int step = 0; step < count; step += rows_per_step * kRowsInFlight) {
      const char* rows[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k)
        rows[k] = from_lane(const_cast<char*>(found),
                            (step + k * rows_per_step + row_of_lane) % kWarpSize);

      for (int64_t pack = first_pack; pack < shape.vectors_per_row; pack += lanes_per_row) {
        Stored raw[kRowsInFlight];
        float scales[kRowsInFlight];
        uint32_t group = 0;
        if (kBytes == 1 && group_columns != 0 && has_groups)
          group = static_cast<uint32_t>(pack) * kPack / group_columns;
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          const int row = step + k * rows_per_step + row_of_lane;
          raw[k] = Stored{};
          scales[k] = 0.0f;
          if (row < count && rows[k] != nullptr) {
            raw[k] = reinterpret_cast<const Stored*>(rows[k])[pack];
            if (kBytes == 1 && group_columns != 0)
              scales[k] = reinterpret_cast<const float*>(rows[k] + codec.scales_begin)[group];
          }
        }
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          const int row = step + k * rows_per_step + row_of_lane;
          if (row >= count) continue;
          T* target = out + ids.out_row(first + row) * codec.columns;
          reinterpret_cast<Pack<T, kPack>*>(target)[pack] =
              widen_pack<T, kBytes, kPack>(codec.stored, raw[k], scales[k]);
        }
      }
    }
  }
}

template <typename T, int kBytes, int kPack>
void launch(const TableView& table, const RowCodec& codec, const IdList& ids, T* out, int device,
            cudaStream_t stream) {
  const auto kernel = decode_rows<T, kBytes, kPack>;
  // The same for all devices of a host; a query costs as much as a launch.
  static const int64_t resident = resident_blocks(kernel, device);
  const int64_t max_blocks = ids.max_blocks == 0 ? resident : std::min(resident, ids.max_blocks);
  const CopyShape shape =
      make_shape(codec.columns / kPack, ids.count, max_blocks * kWarpsPerBlock, kRowsInFlight);
  const unsigned blocks =
      grid_for(ids.count, int64_t{kWarpsPerBlock} * shape.tile_rows, max_blocks);
  kernel<<<blocks, kBlockThreads, 0, stream>>>(table, codec, ids, out, shape, error_slot(device));
  PG_LAUNCH_CHECK("decode_rows");
}

/// Launches with packs of four values where rows, scales and the result allow it.
template <typename T, int kBytes>
void dispatch(const TableView& table, const RowCodec& codec, const IdList& ids, T* out, int device,
              cudaStream_t stream) {
  constexpr int kPack = 4;
  const uint64_t result_bits = reinterpret_cast<uintptr_t>(out);
  const bool in_packs = codec.columns % kPack == 0 && codec.group_columns % kPack == 0 &&
                        alignment_bits(table) % (kPack * kBytes) == 0 &&
                        result_bits % alignof(Pack<T, kPack>) == 0;
  if (in_packs) {
    launch<T, kBytes, kPack>(table, codec, ids, out, device, stream);
  } else {
    launch<T, kBytes, 1>(table, codec, ids, out, device, stream);
  }
}

}  // namespace

void decode_gather_cuda(const TableView& table, const RowCodec& codec, const IdList& ids, char* out,
                        int device, uintptr_t stream_address) {
  raise_pending(device);
  if (ids.count == 0 || codec.columns == 0) return;
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  with_dtype(codec.dtype, [&](auto type) {
    using T = decltype(type);
    T* rows = reinterpret_cast<T*>(out);
    if (codec.stored_bytes() == 2) {
      dispatch<T, 2>(table, codec, ids, rows, device, stream);
    } else {
      dispatch<T, 1>(table, codec, ids, rows, device, stream);
    }
  });
}

}  // namespace peergraph
