#include <algorithm>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "store/large_products.cuh"

namespace peergraph {
namespace {

constexpr int kThreads = 384;
constexpr int kQueryTile = 16;  // queries of a matrix instruction
constexpr int kRowTile = 8;     // rows of a matrix instruction
constexpr int64_t kReservedShared = 1024;

/// The tiles of rows that a warp holds in registers: 64 registers of a thread, if rows are long.
template <int kChunks>
constexpr int kRowTiles = kChunks <= 2   ? 8
                          : kChunks == 4 ? 4
                                         : 2;

/// sums [16 queries, 8 rows] = start + queries [16, 32 bytes] * rows [8, 32 bytes], by a warp. PTX
/// ISA, "Matrix fragments for mma.m16n8k16 / m16n8k32": lane 4 g + t has the queries g and g + 8,
/// the row g, and the sums of these queries with the rows 2 t and 2 t + 1.
template <ProductKind kKind>
__device__ __forceinline__ void multiply_add(SumOf<kKind> (&sums)[4], const SumOf<kKind>* start,
                                             const uint32_t (&query)[4], uint32_t row_low,
                                             uint32_t row_high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  __trap();  // callers ask for the device's capability first
#else
#define PG_MMA(type, constraint)                                                                  \
  asm volatile("mma.sync.aligned." type                                                           \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"             \
               : "=" constraint(sums[0]), "=" constraint(sums[1]), "=" constraint(sums[2]),       \
                 "=" constraint(sums[3])                                                          \
               : "r"(query[0]), "r"(query[1]), "r"(query[2]), "r"(query[3]), "r"(row_low),        \
                 "r"(row_high), constraint(start[0]), constraint(start[1]), constraint(start[2]), \
                 constraint(start[3]))
  if constexpr (kKind == ProductKind::kInt8)
    PG_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
  else if constexpr (kKind == ProductKind::kBfloat16)
    PG_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
  else
    PG_MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
#undef PG_MMA
#endif
}

/// The rows that a warp holds. Lane 4 g + t has, of the row g of each tile, bytes
/// [64 c + 16 t, 64 c + 16 t + 16) of each chunk c. The order of a row's values does not matter, as
/// queries are read in the same one.
template <ProductKind kKind, int kChunks>
class HeldRows {
 public:
  static constexpr int kTiles = kRowTiles<kChunks>;
  static constexpr int kCount = kTiles * kRowTile;

  /// Loads the rows from `first` on; the first is the stage's `position`-th.
  __device__ __forceinline__ void load(const LargeProducts& work, int64_t first, int64_t position) {
    first_ = first;
    position_ = position;
    float most = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t row = row_or_last(work, tile * kRowTile + lane_id() / 4);
      const char* values = work.rows + row * work.row_bytes + lane_id() % 4 * 16;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(values + chunk * 64));
        words_[tile][chunk * 4] = four.x;
        words_[tile][chunk * 4 + 1] = four.y;
        words_[tile][chunk * 4 + 2] = four.z;
        words_[tile][chunk * 4 + 3] = four.w;
      }
      if constexpr (kKind == ProductKind::kInt8) most = fmaxf(most, scale_of(work, row));
    }
    if constexpr (kKind == ProductKind::kInt8) {
#pragma unroll
      for (int reach = 4; reach < kWarpSize; reach *= 2)
        most = fmaxf(most, __shfl_xor_sync(kFullMask, most, reach));
      scales_ = ScaleLevels<64 * kChunks>(most);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int column = 0; column < 2; ++column)
          levels_[tile][column] = scales_.of(
              scale_of(work, row_or_last(work, tile * kRowTile + lane_id() % 4 * 2 + column)));
      }
    }
  }

  /// The largest square of a norm, in all lanes; NaN is larger than any number.
  __device__ __forceinline__ float largest_square(const LargeProducts& work) const {
    uint32_t largest = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      SumOf<kKind> sum = 0;
#pragma unroll
      for (int word = 0; word < kChunks * 4; ++word)
        sum = add_squares<kKind>(sum, words_[tile][word]);
      sum += __shfl_xor_sync(kFullMask, sum, 1);
      sum += __shfl_xor_sync(kFullMask, sum, 2);
      auto square = static_cast<float>(sum);
      if constexpr (kKind == ProductKind::kInt8) {
        const float scale = scale_of(work, row_or_last(work, tile * kRowTile + lane_id() / 4));
        square = square * scale * scale;
      }
      largest = max(largest, __float_as_uint(fabsf(square)));
    }
#pragma unroll
    for (int reach = 4; reach < kWarpSize; reach *= 2)
      largest = max(largest, __shfl_xor_sync(kFullMask, largest, reach));
    return __uint_as_float(largest);
  }

  /// Multiplies a tile of queries with all rows. `low` and `high` are this lane's words of the
  /// queries g and g + 8 in a chunk.
  template <bool kIsFirst>
  __device__ __forceinline__ void multiply_chunk(SumOf<kKind> (&sums)[kTiles][4], int chunk,
                                                 const uint4& low, const uint4& high) const {
    const uint32_t first[4] = {low.x, high.x, low.y, high.y};
    const uint32_t second[4] = {low.z, high.z, low.w, high.w};
    const SumOf<kKind> zeros[4] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      multiply_add<kKind>(sums[tile], kIsFirst ? zeros : sums[tile], first, words_[tile][chunk * 4],
                          words_[tile][chunk * 4 + 1]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      multiply_add<kKind>(sums[tile], sums[tile], second, words_[tile][chunk * 4 + 2],
                          words_[tile][chunk * 4 + 3]);
  }

  /// Whether this lane may have a product of a query above the threshold. `side`: 0 for query g, 1
  /// for query g + 8.
  __device__ __forceinline__ bool may_pass(const SumOf<kKind> (&sums)[kTiles][4], int side,
                                           float threshold) const {
    if constexpr (kKind == ProductKind::kInt8) {
      int largest = INT32_MIN;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        largest = __vimax3_s32(largest, sums[tile][2 * side] * levels_[tile][0],
                               sums[tile][2 * side + 1] * levels_[tile][1]);
      return largest > scales_.limit(threshold);
    } else {
      float largest = -INFINITY;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        largest = fmaxf(largest, fmaxf(sums[tile][2 * side], sums[tile][2 * side + 1]));
      return largest > threshold;
    }
  }

  /// Writes the products of a query that are above the threshold. Returns false where there is no
  /// room.
  __device__ __forceinline__ bool write(const LargeProducts& work,
                                        const SumOf<kKind> (&sums)[kTiles][4], int side,
                                        int64_t query, float threshold) const {
    bool has_room = true;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int offset = tile * kRowTile + lane_id() % 4 * 2 + column;
        const int64_t row = first_ + offset;
        if (row >= work.num_rows) continue;
        auto product = static_cast<float>(sums[tile][2 * side + column]);
        if constexpr (kKind == ProductKind::kInt8) product *= scale_of(work, row);
        has_room &= write_product(work, query, row, position_ + offset, product, threshold);
      }
    }
    return has_room;
  }

 private:
  __device__ __forceinline__ int64_t row_or_last(const LargeProducts& work, int offset) const {
    return min(first_ + offset, work.num_rows - 1);
  }

  int64_t first_, position_;
  uint32_t words_[kTiles][kChunks * 4];
  int levels_[kTiles][2];
  ScaleLevels<64 * kChunks> scales_;
};

/// Where 16 bytes of a query are in shared memory, so that the lanes that read at once, of two
/// queries, use different banks.
template <int kChunks>
__device__ __forceinline__ int place_of(int query, int unit) {
  return query * 4 * kChunks + (kChunks % 2 == 0 ? unit ^ ((query & 1) * 4) : unit);
}

template <ProductKind kKind, int kChunks>
__global__ void __launch_bounds__(kThreads, 1)
    large_products_kernel(const __grid_constant__ LargeProducts work, int queries_at_once) {
  using Rows = HeldRows<kKind, kChunks>;
  extern __shared__ uint4 queries[];
  auto* bounds = reinterpret_cast<QueryBound*>(queries + queries_at_once * 4 * kChunks);
  const int64_t first_query = int64_t{blockIdx.y} * queries_at_once;
  const auto count =
      static_cast<int>(min(work.num_queries - first_query, int64_t{queries_at_once}));
  const int padded = (count + kQueryTile - 1) / kQueryTile * kQueryTile;
  const auto* source =
      reinterpret_cast<const uint4*>(work.queries + first_query * work.value_bytes);
  for (int i = threadIdx.x; i < padded * 4 * kChunks; i += kThreads) {
    const int query = i / (4 * kChunks), unit = i % (4 * kChunks);
    queries[place_of<kChunks>(query, unit)] = query < count ? source[i] : uint4{0, 0, 0, 0};
  }
  load_bounds(work, first_query, count, padded, bounds);
  __syncthreads();

  const int lane_query = lane_id() / 4, lane_unit = lane_id() % 4;
  constexpr int kParts = kBlockRows / Rows::kCount;
  const int64_t num_parts = num_blocks(work) * kParts;
  uint32_t largest_square = 0;
  Rows rows;
  for (int64_t part = global_warp(); part < num_parts; part += grid_warps()) {
    const int64_t first = first_row(work, part / kParts) + part % kParts * Rows::kCount;
    if (first >= work.num_rows) break;
    rows.load(work, first, part * Rows::kCount);
    const float square = rows.largest_square(work);
    largest_square = max(largest_square, __float_as_uint(square));
    const float norm = norm_of(square);
    for (int tile = 0; tile < padded; tile += kQueryTile) {
      SumOf<kKind> sums[Rows::kTiles][4];
      const int query = tile + lane_query;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int unit = chunk * 4 + lane_unit;
        const uint4 low = queries[place_of<kChunks>(query, unit)];
        const uint4 high = queries[place_of<kChunks>(query + 8, unit)];
        if (chunk == 0)
          rows.template multiply_chunk<true>(sums, chunk, low, high);
        else
          rows.template multiply_chunk<false>(sums, chunk, low, high);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        QueryBound& bound = bounds[query + 8 * side];
        const float threshold = bound.threshold(norm);
        const bool may_pass =
            query + 8 * side < count && (work.writes_all || rows.may_pass(sums, side, threshold));
        if (!__any_sync(kFullMask, may_pass)) continue;
        // Other warps may see it or not: what has no room is searched for again.
        if (may_pass && !rows.write(work, sums, side, first_query + query + 8 * side, threshold))
          bound.close();
        __syncwarp();
      }
    }
  }
  if (lane_id() == 0)
    atomicMax(reinterpret_cast<unsigned*>(work.largest_norm),
              static_cast<unsigned>(largest_square));
}

template <ProductKind kKind, int kChunks>
void launch(const LargeProducts& work, int device, cudaStream_t stream) {
  int shared_bytes = 0, processors = 0;
  PG_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  constexpr int64_t kBytesPerQuery = 64 * kChunks + sizeof(QueryBound);
  const int64_t most = (shared_bytes - kReservedShared) / kBytesPerQuery / kQueryTile * kQueryTile;
  // Equal parts of the queries.
  const int64_t parts = (work.num_queries + most - 1) / most;
  const int64_t at_once =
      ((work.num_queries + parts - 1) / parts + kQueryTile - 1) / kQueryTile * kQueryTile;
  const auto bytes = static_cast<size_t>(at_once * kBytesPerQuery);
  const auto kernel = large_products_kernel<kKind, kChunks>;
  PG_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
  constexpr int64_t kRowsAtOnce = HeldRows<kKind, kChunks>::kCount * (kThreads / kWarpSize);
  const dim3 grid(grid_for(num_stage_rows(work), kRowsAtOnce, processors),
                  static_cast<unsigned>(parts));
  kernel<<<grid, kThreads, bytes, stream>>>(work, static_cast<int>(at_once));
  PG_LAUNCH_CHECK("large_products_kernel");
}

template <ProductKind kKind>
void launch_kind(const LargeProducts& work, int device, cudaStream_t stream) {
  switch (work.value_bytes) {
    case 64:
      return launch<kKind, 1>(work, device, stream);
    case 128:
      return launch<kKind, 2>(work, device, stream);
    case 256:
      return launch<kKind, 4>(work, device, stream);
    case 512:
      return launch<kKind, 8>(work, device, stream);
    default:
      PG_CHECK_ARG(false, "rows must have 64, 128, 256 or 512 bytes");
  }
}

}  // namespace

void large_products_cuda(const LargeProducts& work, int device, uintptr_t stream_address) {
  if (num_blocks(work) == 0 || work.num_queries == 0) return;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  if (has_wgmma(work, device)) return large_products_wgmma(work, device, stream);
  switch (work.kind) {
    case ProductKind::kInt8:
      return launch_kind<ProductKind::kInt8>(work, device, stream);
    case ProductKind::kBfloat16:
      return launch_kind<ProductKind::kBfloat16>(work, device, stream);
    case ProductKind::kFloat16:
      return launch_kind<ProductKind::kFloat16>(work, device, stream);
  }
}

}  // namespace peergraph
