// The gather and the scatter kernel (WholeGraph III-C3): one launch for rows of all tiers.
//
// A warp takes a tile of up to 32 rows. First each lane looks up one id and the address of its row,
// so that the dependent reads of the tile (id, order, location) are under way together. Then groups
// of lanes copy rows, several rows at a time, so that enough loads are in flight to cover the
// latency of other GPUs' memory.
#include <algorithm>

#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "memory/error_slot.h"
#include "memory/gather.h"
#include "memory/row_tiles.cuh"

namespace peergraph {
namespace {

// The number of rows that a group of lanes reads at the same time. Narrow vectors need more rows,
// unless rows are read by whole lines.
template <typename Vector, bool kByLines>
constexpr int kRowsInFlight = sizeof(Vector) == 16 || kByLines ? 4 : 8;

// Other GPUs' memory is read in lines of this many bytes.
constexpr uint32_t kLineBytes = 128;

/// The number of lanes that stay idle before a row, so that each step of the lanes begins at a line
/// boundary. If a step began inside a line, this step and the one before would both request it.
template <typename Vector>
__device__ __forceinline__ int64_t lanes_before_row(const char* row) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) % kLineBytes / sizeof(Vector);
}

/// Writes a vector of a table row, and of the row's other replicas.
template <typename Vector>
__device__ __forceinline__ void store_row_vector(const TableView& table, char* address,
                                                 Vector value) {
  const int64_t offset = address - table.replicas[table.rank];
  if (offset < 0 || offset >= table.map.replicated * table.row_bytes) {
    *reinterpret_cast<Vector*>(address) = value;
    return;
  }
  for (int32_t r = 0; r < table.num_replicas; ++r)
    *reinterpret_cast<Vector*>(table.replicas[r] + offset) = value;
}

template <typename Vector>
struct Gather {
  static constexpr bool kSplitsHostRows = false;
  Vector* out;

  __device__ __forceinline__ Vector load(const char* row, const IdList&, int64_t, int64_t v,
                                         int64_t) const {
    // This SM reads the row once, so the L1 cache is not used.
    return row == nullptr ? Vector{} : __ldcg(reinterpret_cast<const Vector*>(row) + v);
  }
  __device__ __forceinline__ void store(const TableView&, char*, const IdList&, int64_t i,
                                        int64_t v, int64_t width, Vector value) const {
    __stcs(out + i * width + v, value);
  }
};

/// As Gather, but writes row i to row ids.out_index[i] of the result.
template <typename Vector>
struct IndexedGather : Gather<Vector> {
  static constexpr bool kSplitsHostRows = true;
  __device__ __forceinline__ void store(const TableView&, char*, const IdList& ids, int64_t i,
                                        int64_t v, int64_t width, Vector value) const {
    __stcs(this->out + ids.out_index[i] * width + v, value);
  }
};

template <typename Vector>
struct Scatter {
  static constexpr bool kSplitsHostRows = false;
  const Vector* values;

  __device__ __forceinline__ Vector load(const char*, const IdList&, int64_t i, int64_t v,
                                         int64_t width) const {
    return __ldcs(values + i * width + v);
  }
  __device__ __forceinline__ void store(const TableView& table, char* row, const IdList&, int64_t,
                                        int64_t v, int64_t, Vector value) const {
    if (row != nullptr)
      store_row_vector(table, row + v * static_cast<int64_t>(sizeof(Vector)), value);
  }
};

/// Copies rows between the table and a dense matrix of the caller; `Copy` gives the direction.
template <typename Vector, template <typename> class Copy, bool kByLines>
__global__ void __launch_bounds__(kBlockThreads, 4)
    copy_rows(const __grid_constant__ TableView table, const __grid_constant__ IdList ids,
              Copy<Vector> copy, CopyShape shape, ErrorSlot errors) {
  constexpr int kInFlight = kRowsInFlight<Vector, kByLines>;
  const int lane = lane_id();
  const int lanes_per_row = 1 << shape.lanes_per_row_log2;
  const int rows_per_step = kWarpSize >> shape.lanes_per_row_log2;
  const int row_of_lane = lane >> shape.lanes_per_row_log2;
  const int first_vector = lane & (lanes_per_row - 1);
  const WarpShare share = share_of_warp<Copy<Vector>::kSplitsHostRows>(ids, shape);
  const int64_t lanes_needed =
      shape.vectors_per_row + (kByLines ? kLineBytes / int64_t{sizeof(Vector)} - 1 : 0);

  for (int64_t first = share.first; first < share.end; first += share.step) {
    const int count =
        static_cast<int>(share.end - first < share.tile_rows ? share.end - first : share.tile_rows);
    char* found = lane < count ? find_row(table, ids, first + lane, errors) : nullptr;
    __syncwarp();

    for (int step = 0; step < count; step += rows_per_step * kInFlight) {
      char* rows[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
        rows[k] = from_lane(found, (step + k * rows_per_step + row_of_lane) % kWarpSize);

      for (int64_t column = first_vector; column < lanes_needed; column += lanes_per_row) {
        Vector values[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int row = step + k * rows_per_step + row_of_lane;
          const int64_t v = kByLines ? column - lanes_before_row<Vector>(rows[k]) : column;
          if (row < count && (!kByLines || (v >= 0 && v < shape.vectors_per_row)))
            values[k] = copy.load(rows[k], ids, first + row, v, shape.vectors_per_row);
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int row = step + k * rows_per_step + row_of_lane;
          const int64_t v = kByLines ? column - lanes_before_row<Vector>(rows[k]) : column;
          if (row < count && (!kByLines || (v >= 0 && v < shape.vectors_per_row)))
            copy.store(table, rows[k], ids, first + row, v, shape.vectors_per_row, values[k]);
        }
      }
    }
  }
}

template <typename Vector, template <typename> class Copy, bool kByLines, typename Data>
void launch(const TableView& table, const IdList& ids, Data* data, int device,
            cudaStream_t stream) {
  const ErrorSlot errors = error_slot(device);
  const auto kernel = copy_rows<Vector, Copy, kByLines>;
  // Queried once, since a query costs as much as a launch. The GPUs of a host are of one model.
  static const int64_t resident = resident_blocks(kernel, device);
  const int64_t max_blocks = ids.max_blocks == 0 ? resident : std::min(resident, ids.max_blocks);
  CopyShape shape = make_shape(table.row_bytes / static_cast<int64_t>(sizeof(Vector)), ids.count,
                               max_blocks * kWarpsPerBlock, kRowsInFlight<Vector, kByLines>);
  unsigned blocks = grid_for(ids.count, int64_t{kWarpsPerBlock} * shape.tile_rows, max_blocks);
  if (Copy<Vector>::kSplitsHostRows && ids.host_begin != nullptr) {
    shape.host_blocks = host_blocks(table);
    blocks += shape.host_blocks;
  }
  kernel<<<blocks, kBlockThreads, 0, stream>>>(table, ids, Copy<Vector>{data}, shape, errors);
  PG_LAUNCH_CHECK("copy_rows");
}

/// Whether fewer lines are requested if steps begin at line boundaries. This makes no difference if
/// a row is a single step, or if all rows begin at line boundaries.
bool saves_lines(const TableView& table, int64_t vector_bytes) {
  return table.row_bytes > kWarpSize * vector_bytes && table.row_bytes % kLineBytes != 0;
}

/// Launches with the widest vector to which all rows are aligned.
template <template <typename> class Copy, template <typename> class DataOf>
void dispatch(const TableView& table, const IdList& ids, uintptr_t data, int device,
              uintptr_t stream_address) {
  raise_pending(device);
  if (ids.count == 0) return;
  DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  const uint64_t bits = alignment_bits(table) | data;
  const auto run = [&](auto vector) {
    using Vector = decltype(vector);
    const auto rows = reinterpret_cast<typename DataOf<Vector>::type*>(data);
    if (saves_lines(table, sizeof(Vector))) {
      launch<Vector, Copy, true>(table, ids, rows, device, stream);
    } else {
      launch<Vector, Copy, false>(table, ids, rows, device, stream);
    }
  };
  if (bits % 16 == 0) return run(int4{});
  if (bits % 8 == 0) return run(int2{});
  if (bits % 4 == 0) return run(int{});
  if (bits % 2 == 0) return run(short{});
  run(static_cast<signed char>(0));
}

template <typename Vector>
struct Mutable {
  using type = Vector;
};

template <typename Vector>
struct Constant {
  using type = const Vector;
};

}  // namespace

void gather_cuda(const TableView& table, const IdList& ids, char* out, int device,
                 uintptr_t stream) {
  const auto target = reinterpret_cast<uintptr_t>(out);
  if (ids.out_index == nullptr) {
    dispatch<Gather, Mutable>(table, ids, target, device, stream);
  } else {
    dispatch<IndexedGather, Mutable>(table, ids, target, device, stream);
  }
}

void scatter_cuda(const TableView& table, const IdList& ids, const char* values, int device,
                  uintptr_t stream) {
  dispatch<Scatter, Constant>(table, ids, reinterpret_cast<uintptr_t>(values), device, stream);
}

}  // namespace peergraph
