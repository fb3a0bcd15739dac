// The gather and the scatter kernel (WholeGraph III-C3). One launch reads rows of all tiers, and of
// several tables whose rows are read in vectors of one width.
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
  using Dense = Vector;
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
  using Dense = const Vector;
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

/// Rows of a table that are copied from or to a dense matrix of the caller.
struct RowCopy {
  TableView table;
  IdList ids;
  char* dense;
  CopyShape shape;
};

/// Copies rows of tables; `Copy` gives the direction.
template <typename Vector, template <typename> class Copy, bool kByLines, typename Copies>
__global__ void __launch_bounds__(kBlockThreads, 4)
    copy_rows(const __grid_constant__ Copies copies, ErrorSlot errors) {
  constexpr int kInFlight = kRowsInFlight<Vector, kByLines>;
  const auto part = copies.part();
  const TableView& table = part.item.table;
  const IdList& ids = part.item.ids;
  const CopyShape& shape = part.item.shape;
  const Copy<Vector> copy{reinterpret_cast<typename Copy<Vector>::Dense*>(part.item.dense)};
  const int lane = lane_id();
  const int lanes_per_row = 1 << shape.lanes_per_row_log2;
  const int rows_per_step = kWarpSize >> shape.lanes_per_row_log2;
  const int row_of_lane = lane >> shape.lanes_per_row_log2;
  const int first_vector = lane & (lanes_per_row - 1);
  const WarpShare share = share_of_warp<Copy<Vector>::kSplitsHostRows>(part.item, part);
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

template <typename Vector, template <typename> class Copy, bool kByLines>
void launch(std::vector<RowCopy>& copies, const Allocate& allocate, int device,
            cudaStream_t stream) {
  const ErrorSlot errors = error_slot(device);
  // Queried once, since a query costs as much as a launch. The GPUs of a host are of one model.
  static const int64_t resident =
      resident_blocks(copy_rows<Vector, Copy, kByLines, OneItem<RowCopy>>, device);
  const std::vector<unsigned> blocks =
      share_blocks(copies, resident, [](RowCopy& each, int64_t of) {
        const TableView& table = each.table;
        const int64_t vectors = table.row_bytes / static_cast<int64_t>(sizeof(Vector));
        each.shape = make_shape(vectors, each.ids.count, of * kWarpsPerBlock,
                                kRowsInFlight<Vector, kByLines>);
        if (Copy<Vector>::kSplitsHostRows && each.ids.host_begin != nullptr)
          each.shape.host_blocks = host_blocks(table);
      });
  launch_items(copies, blocks, allocate, stream, [&](const auto& items, unsigned num_blocks) {
    copy_rows<Vector, Copy, kByLines><<<num_blocks, kBlockThreads, 0, stream>>>(items, errors);
    PG_LAUNCH_CHECK("copy_rows");
  });
}

/// Whether fewer lines are requested if steps begin at line boundaries. This makes no difference if
/// a row is a single step, or if all rows begin at line boundaries.
bool saves_lines(const TableView& table, int64_t vector_bytes) {
  return table.row_bytes > kWarpSize * vector_bytes && table.row_bytes % kLineBytes != 0;
}

/// The bytes of the widest vector to which all rows are aligned.
int64_t vector_bytes_of(const RowCopy& copy) {
  const uint64_t bits = alignment_bits(copy.table) | reinterpret_cast<uintptr_t>(copy.dense);
  int64_t bytes = sizeof(int4);
  while (bits % bytes != 0) bytes /= 2;
  return bytes;
}

/// Launches the kernels that copy rows in vectors of this type.
template <typename Vector, template <typename> class Copy>
void launch_kinds(const std::vector<RowCopy>& copies, const Allocate& allocate, int device,
                  cudaStream_t stream) {
  std::vector<RowCopy> by_steps, by_lines;
  for (const RowCopy& each : copies)
    (saves_lines(each.table, sizeof(Vector)) ? by_lines : by_steps).push_back(each);
  if (!by_steps.empty()) launch<Vector, Copy, false>(by_steps, allocate, device, stream);
  if (!by_lines.empty()) launch<Vector, Copy, true>(by_lines, allocate, device, stream);
}

template <template <typename> class Copy>
void launch_all(const std::vector<RowCopy>& copies, const Allocate& allocate, int device,
                uintptr_t stream_address) {
  raise_pending(device);
  if (copies.empty()) return;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  std::vector<RowCopy> by_bytes[sizeof(int4) + 1];
  for (const RowCopy& each : copies) by_bytes[vector_bytes_of(each)].push_back(each);
  launch_kinds<int4, Copy>(by_bytes[16], allocate, device, stream);
  launch_kinds<int2, Copy>(by_bytes[8], allocate, device, stream);
  launch_kinds<int, Copy>(by_bytes[4], allocate, device, stream);
  launch_kinds<short, Copy>(by_bytes[2], allocate, device, stream);
  launch_kinds<signed char, Copy>(by_bytes[1], allocate, device, stream);
}

}  // namespace

void gather_cuda(const std::vector<RowRead>& reads, const Allocate& allocate, int device,
                 uintptr_t stream) {
  std::vector<RowCopy> in_order, indexed;
  for (const RowRead& read : reads)
    if (read.ids.count > 0)
      (read.ids.out_index == nullptr ? in_order : indexed)
          .push_back({*read.table, read.ids, read.out, {}});
  launch_all<Gather>(in_order, allocate, device, stream);
  if (!indexed.empty()) launch_all<IndexedGather>(indexed, allocate, device, stream);
}

void scatter_cuda(const TableView& table, const IdList& ids, const char* values, int device,
                  uintptr_t stream) {
  std::vector<RowCopy> copies;
  // Kernels only read the values.
  if (ids.count > 0) copies.push_back({table, ids, const_cast<char*>(values), {}});
  launch_all<Scatter>(copies, {}, device, stream);
}

}  // namespace peergraph
