// Large products of rows of 128 or 256 bytes on GPUs of capability 9.0, at the full rate of their
// tensor cores, which only the asynchronous instructions of warpgroups have.
#include <algorithm>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "store/large_products.cuh"

namespace peergraph {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kQueryTile = 64;  // queries of an instruction; its rows are those of a block of rows
constexpr int kSums = kQueryTile * static_cast<int>(kBlockRows) / kGroupThreads;  // of a thread
constexpr int kAtomBytes = 128;  // of a row: longer rows are several matrices
constexpr int kUnits = kAtomBytes / 16;
static_assert(kBlockRows == kGroupThreads && kSums == 64);

constexpr int kGroups = 2;  // warpgroups of a block, each with rows of its own
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kTilesAtOnce = 4;
constexpr int kQueryStep = kTilesAtOnce * kQueryTile;
constexpr int kQueue = 512;  // products that a warpgroup holds back

/// Blocks of rows of a warpgroup in shared memory: the next is copied while one is multiplied.
template <int kAtoms>
constexpr int kBuffers = kAtoms == 1 ? 2 : 1;

/// What is computed of the rows of a warpgroup.
struct RowTile {
  float scales[kBlockRows];
  int levels[kBlockRows];
  float most_scale[kGroupThreads / kWarpSize];
  uint32_t most_square[kGroupThreads / kWarpSize];
};

/// Products that are above bounds. Places in the results are taken for many of them together, so
/// that no warp waits for each.
struct Queue {
  int count;
  float products[kQueue];
  int queries[kQueue];
  int rows[kQueue];
};

/// The queries, [atoms][queries][128 bytes], and their bounds are behind it.
template <int kAtoms>
struct Shared {
  uint4 rows[kGroups][kBuffers<kAtoms>][kAtoms][kBlockRows * kUnits];
  RowTile tiles[kGroups];
  Queue queues[kGroups];
};

template <int kAtoms>
constexpr int kQueriesBegin = (sizeof(Shared<kAtoms>) + 1023) / 1024 * 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kFlushed = 128;  // held products, from which on a warpgroup writes them

/// Where 16 bytes of a row are: rows of 128 bytes, of which the bits 4 to 6 of an address are
/// changed by bits 7 to 9 ("128-byte swizzle").
__device__ __forceinline__ int unit_of(int row, int unit) {
  return row * kUnits + (unit ^ (row % 8));
}

/// PTX ISA, "Matrix descriptor": rows of 128 bytes that are swizzled, groups of 8 rows 1,024 bytes
/// apart.
__device__ __forceinline__ uint64_t descriptor_of(const uint4* matrix) {
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(matrix));
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

/// What changes registers of sums, or reads them, is not moved over this.
template <typename Sum>
__device__ __forceinline__ void fence_registers(Sum (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if constexpr (std::is_same_v<Sum, float>)
      asm volatile("" : "+f"(sums[i])::"memory");
    else
      asm volatile("" : "+r"(sums[i])::"memory");
  }
}

#define PG_8(type, i)                                                                        \
  type(sums[i]), type(sums[i + 1]), type(sums[i + 2]), type(sums[i + 3]), type(sums[i + 4]), \
      type(sums[i + 5]), type(sums[i + 6]), type(sums[i + 7])
#define PG_WGMMA(type, name, more)                                                         \
  asm volatile(                                                                            \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\nwgmma.mma_async.sync.aligned." name \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "  \
      "%64, %65, adds" more ";\n}"                                                         \
      : PG_8(type, 0), PG_8(type, 8), PG_8(type, 16), PG_8(type, 24), PG_8(type, 32),      \
        PG_8(type, 40), PG_8(type, 48), PG_8(type, 56)                                     \
      : "l"(queries), "l"(rows), "n"(kAdds ? 1 : 0))

/// sums (+)= 32 bytes of 64 queries times those of 128 rows. PTX ISA, "Register fragments for
/// wgmma.mma_async.m64nNk32": of warp w, lane 4 g + t has the sums of the queries 16 w + g (0, 1)
/// and 16 w + g + 8 (2, 3) with the rows 8 j + 2 t and 8 j + 2 t + 1, at 4 j.
template <ProductKind kKind, bool kAdds>
__device__ __forceinline__ void multiply(SumOf<kKind> (&sums)[kSums], uint64_t queries,
                                         uint64_t rows) {
  if constexpr (kKind == ProductKind::kInt8)
    PG_WGMMA("+r", "m64n128k32.s32.s8.s8", "");
  else if constexpr (kKind == ProductKind::kBfloat16)
    PG_WGMMA("+f", "m64n128k16.f32.bf16.bf16", ", 1, 1, 0, 0");
  else
    PG_WGMMA("+f", "m64n128k16.f32.f16.f16", ", 1, 1, 0, 0");
}
#undef PG_WGMMA
#undef PG_8

/// Starts sums = 64 queries times 128 rows. `query_step`: from one 128 bytes of the queries to the
/// next, as in descriptors.
template <ProductKind kKind, int kAtoms>
__device__ __forceinline__ void start_sums(SumOf<kKind> (&sums)[kSums], uint64_t queries,
                                           uint64_t query_step, uint64_t rows) {
  constexpr int kDepth = 32;  // bytes of an instruction
  constexpr uint64_t kRowStep = kBlockRows * kAtomBytes >> 4;
  fence_registers(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int atom = 0; atom < kAtoms; ++atom) {
#pragma unroll
    for (int i = 0; i < kAtomBytes / kDepth; ++i) {
      const uint64_t from = queries + atom * query_step + i * (kDepth >> 4);
      const uint64_t with = rows + atom * kRowStep + i * (kDepth >> 4);
      if (atom == 0 && i == 0)
        multiply<kKind, false>(sums, from, with);
      else
        multiply<kKind, true>(sums, from, with);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits for sums after which `kPending` others were started.
template <int kPending, typename Sum>
__device__ __forceinline__ void wait_for_sums(Sum (&sums)[kSums]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  fence_registers(sums);
}

/// Starts to copy a block of rows to shared memory.
template <int kAtoms>
__device__ __forceinline__ void start_rows(const LargeProducts& work, int64_t first,
                                           uint4 (&rows)[kAtoms][kBlockRows * kUnits], int thread) {
  constexpr int kOfRow = kAtoms * kUnits;
#pragma unroll
  for (int i = 0; i < kOfRow; ++i) {
    const int row = i * (kGroupThreads / kOfRow) + thread / kOfRow, unit = thread % kOfRow;
    const char* source =
        work.rows + min(first + row, work.num_rows - 1) * work.row_bytes + unit * 16;
    const uint4* target = rows[unit / kUnits] + unit_of(row, unit % kUnits);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(target))),
                 "l"(source)
                 : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for rows that were copied, so that all threads and the tensor cores see them.
__device__ __forceinline__ void wait_for_rows(int group) {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  sync_group(group);
}

/// The scale of a thread's row; the last one has its own beyond the end.
template <ProductKind kKind>
__device__ __forceinline__ float scale_of_thread(const LargeProducts& work, int64_t first,
                                                 int thread) {
  if constexpr (kKind != ProductKind::kInt8) return 1;
  return scale_of(work, min(first + thread, work.num_rows - 1));
}

/// Finds the largest scale and the largest square of a norm, of each warp.
template <ProductKind kKind, int kAtoms>
__device__ __forceinline__ void measure_rows(const uint4 (&rows)[kAtoms][kBlockRows * kUnits],
                                             float scale, RowTile& tile, int group, int thread) {
  SumOf<kKind> sum = 0;
#pragma unroll
  for (int unit = 0; unit < kAtoms * kUnits; ++unit) {
    const uint4 four = rows[unit / kUnits][unit_of(thread, unit % kUnits)];
    sum = add_squares<kKind>(add_squares<kKind>(sum, four.x), four.y);
    sum = add_squares<kKind>(add_squares<kKind>(sum, four.z), four.w);
  }
  const uint32_t own = __float_as_uint(fabsf(static_cast<float>(sum) * scale * scale));
  const uint32_t warp_square = __reduce_max_sync(kFullMask, own);
  // Scales are not negative; those that are not numbers are found by their square.
  const uint32_t warp_scale = __reduce_max_sync(kFullMask, __float_as_uint(fabsf(scale)));
  if (lane_id() == 0) {
    tile.most_square[thread / kWarpSize] = warp_square;
    tile.most_scale[thread / kWarpSize] = __uint_as_float(warp_scale);
  }
  tile.scales[thread] = scale;
  sync_group(group);
}

/// Computes levels of the rows' scales and the largest square of a norm.
template <ProductKind kKind, int kAtoms>
__device__ __forceinline__ ScaleLevels<kAtoms * kAtomBytes> find_levels(float scale, RowTile& tile,
                                                                        int group, int thread,
                                                                        uint32_t* square) {
  float most = 0;
  *square = 0;
#pragma unroll
  for (int warp = 0; warp < kGroupThreads / kWarpSize; ++warp) {
    most = fmaxf(most, tile.most_scale[warp]);
    *square = max(*square, tile.most_square[warp]);
  }
  const ScaleLevels<kAtoms * kAtomBytes> scales(most);
  if constexpr (kKind == ProductKind::kInt8) tile.levels[thread] = scales.of(scale);
  sync_group(group);
  return scales;
}

__device__ __forceinline__ void append(const LargeProducts& work, int64_t first_query,
                                       QueryBound* bounds, int query, int row, float product) {
  // Other warps may see it or not: what has no room is searched for again.
  if (!append_product(work, first_query + query, row, product)) bounds[query].close();
}

/// Looks at the products of 64 queries with the block of rows from `first` on.
template <ProductKind kKind, int kColumns>
struct Finder {
  const LargeProducts& work;
  const RowTile& tile;
  Queue& queue;
  QueryBound* bounds;
  int64_t first_query;
  int count;
  int64_t first, position;
  float norm;
  ScaleLevels<kColumns> scales;
  int levels[kSums / 2];

  __device__ __forceinline__ void find(const SumOf<kKind> (&sums)[kSums], int query_tile,
                                       int thread) {
    const int query = query_tile * kQueryTile + thread / kWarpSize * 16 + lane_id() / 4;
    const SumOf<kKind> largest[2] = {largest_of(sums, 0), largest_of(sums, 1)};
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const QueryBound& bound = bounds[query + 8 * side];
      const float threshold = bound.threshold(norm);
      SumOf<kKind> limit;
      if constexpr (kKind == ProductKind::kInt8)
        limit = scales.limit(threshold);
      else
        limit = threshold;
      const bool may_pass = query + 8 * side < count && (work.writes_all || largest[side] > limit);
      if (!__any_sync(kFullMask, may_pass)) continue;
      if (may_pass) push(sums, side, query + 8 * side, limit, threshold);
      __syncwarp();
    }
  }

  __device__ __forceinline__ SumOf<kKind> largest_of(const SumOf<kKind> (&sums)[kSums],
                                                     int side) const {
    if constexpr (kKind == ProductKind::kInt8) {
      int largest = INT32_MIN;
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
        largest = __vimax3_s32(largest, sums[i + 2 * side] * levels[i / 2],
                               sums[i + 2 * side + 1] * levels[i / 2 + 1]);
      return largest;
    } else {
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
        largest = fmaxf(largest, fmaxf(sums[i + 2 * side], sums[i + 2 * side + 1]));
      return largest;
    }
  }

  /// Holds back the products of a query that are above its bound, or writes them where there are
  /// many.
  __device__ __forceinline__ void push(const SumOf<kKind> (&sums)[kSums], int side, int query,
                                       SumOf<kKind> limit, float threshold) const {
    SumOf<kKind> own[kSums / 2];  // in memory, as few are looked at again
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kSums / 2; ++i) {
      own[i] = sums[i / 2 * 4 + 2 * side + i % 2];
      if constexpr (kKind == ProductKind::kInt8)
        mask |= own[i] * levels[i] > limit ? 1u << i : 0;
      else
        mask |= own[i] > limit ? 1u << i : 0;
    }
    if (work.writes_all) mask = 0xffffffffu;
#pragma unroll 1
    for (; mask != 0; mask &= mask - 1) {
      const int i = __ffs(static_cast<int>(mask)) - 1;
      const int offset = i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
      auto product = static_cast<float>(own[i]);
      if constexpr (kKind == ProductKind::kInt8) product *= tile.scales[offset];
      if (first + offset >= work.num_rows) break;
      if (work.writes_all)
        write_at(work, first_query + query, position + offset, first + offset, product);
      else if (product > threshold)
        hold(query, static_cast<int>(first) + offset, product);
    }
  }

  __device__ __forceinline__ void hold(int query, int row, float product) const {
    const int place = atomicAdd(&queue.count, 1);
    if (place >= kQueue) return append(work, first_query, bounds, query, row, product);
    queue.products[place] = product;
    queue.queries[place] = query;
    queue.rows[place] = row;
  }
};

/// Writes what was held back. No thread of the group holds back more meanwhile.
__device__ __forceinline__ void flush(const LargeProducts& work, const Queue& queue,
                                      int64_t first_query, QueryBound* bounds, int thread) {
  const int held = min(queue.count, kQueue);
  for (int i = thread; i < held; i += kGroupThreads)
    append(work, first_query, bounds, queue.queries[i], queue.rows[i], queue.products[i]);
}

#endif

template <ProductKind kKind, int kAtoms>
__global__ void __launch_bounds__(kThreads, 1)
    large_products_wgmma_kernel(const __grid_constant__ LargeProducts work, int queries_at_once) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint4 memory[];
  constexpr int kOfQuery = kAtoms * kUnits;
  auto& shared = *reinterpret_cast<Shared<kAtoms>*>(memory);
  uint4* queries = memory + kQueriesBegin<kAtoms> / sizeof(uint4);
  const int64_t first_query = int64_t{blockIdx.y} * queries_at_once;
  const auto count =
      static_cast<int>(min(work.num_queries - first_query, int64_t{queries_at_once}));
  const int padded = (count + kQueryStep - 1) / kQueryStep * kQueryStep;
  auto* bounds = reinterpret_cast<QueryBound*>(queries + padded * kOfQuery);
  const auto* source =
      reinterpret_cast<const uint4*>(work.queries + first_query * work.value_bytes);
  for (int i = static_cast<int>(threadIdx.x); i < padded * kOfQuery; i += kThreads) {
    const int query = i / kOfQuery, unit = i % kOfQuery;
    queries[unit / kUnits * padded * kUnits + unit_of(query, unit % kUnits)] =
        query < count ? source[i] : uint4{0, 0, 0, 0};
  }
  load_bounds(work, first_query, count, padded, bounds);
  if (threadIdx.x < kGroups) shared.queues[threadIdx.x].count = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  RowTile& tile = shared.tiles[group];
  Queue& queue = shared.queues[group];
  auto& rows = shared.rows[group];
  constexpr uint64_t kTileStep = kQueryTile * kAtomBytes >> 4;
  constexpr bool kIsAhead = kBuffers<kAtoms> == 2;
  const uint64_t query_matrix = descriptor_of(queries), query_step = padded * kAtomBytes >> 4;
  const int64_t blocks = num_blocks(work), step = int64_t{gridDim.x} * kGroups;
  int64_t block = int64_t{blockIdx.x} * kGroups + group;
  if (block < blocks) start_rows(work, first_row(work, block), rows[0], thread);
  uint32_t largest_square = 0;
  float scale = scale_of_thread<kKind>(work, first_row(work, block), thread);
  for (int buffer = 0; block < blocks; block += step) {
    const int64_t first = first_row(work, block);
    const bool has_next = block + step < blocks;
    wait_for_rows(group);  // all are done with the last rows and what is known of them
    if (kIsAhead && has_next)
      start_rows(work, first_row(work, block + step), rows[buffer ^ 1], thread);
    const bool is_full = queue.count >= kFlushed;
    if (is_full) flush(work, queue, first_query, bounds, thread);
    measure_rows<kKind>(rows[buffer], scale, tile, group, thread);
    if (is_full && thread == 0) queue.count = 0;
    uint32_t square;
    const auto scales = find_levels<kKind, kAtoms>(scale, tile, group, thread, &square);
    scale = scale_of_thread<kKind>(work, first_row(work, block + step), thread);
    largest_square = max(largest_square, square);
    Finder<kKind, kAtoms * kAtomBytes> finder{work,
                                              tile,
                                              queue,
                                              bounds,
                                              first_query,
                                              count,
                                              first,
                                              block * kBlockRows,
                                              norm_of(__uint_as_float(square)),
                                              scales,
                                              {}};
    if constexpr (kKind == ProductKind::kInt8) {
#pragma unroll
      for (int i = 0; i < kSums / 2; ++i)
        finder.levels[i] = tile.levels[i / 2 * 8 + lane_id() % 4 * 2 + i % 2];
    }
    const uint64_t row_matrix = descriptor_of(rows[buffer][0]);
    for (int query = 0; query < padded; query += kQueryStep) {
      // The sums of the next tile are under way while those of one are looked at. The compiler
      // allows that within a step of the loop only.
      SumOf<kKind> sums[2][kSums];
      const int number = query / kQueryTile;
      const auto start = [&](int i) {
        start_sums<kKind, kAtoms>(sums[i % 2], query_matrix + (number + i) * kTileStep, query_step,
                                  row_matrix);
      };
      start(0);
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        if (i + 1 < kTilesAtOnce) {
          start(i + 1);
          wait_for_sums<1>(sums[i % 2]);
        } else {
          wait_for_sums<0>(sums[i % 2]);
        }
        finder.find(sums[i % 2], number + i, thread);
      }
    }
    if (kIsAhead) {
      buffer ^= 1;
    } else if (has_next) {
      sync_group(group);  // all are done with the rows
      start_rows(work, first_row(work, block + step), rows[0], thread);
    }
  }
  sync_group(group);
  flush(work, queue, first_query, bounds, thread);
  if (thread % kWarpSize == 0)
    atomicMax(reinterpret_cast<unsigned*>(work.largest_norm),
              static_cast<unsigned>(largest_square));
#else
  __trap();  // callers ask for the device's capability first
#endif
}

template <ProductKind kKind, int kAtoms>
void launch(const LargeProducts& work, int device, cudaStream_t stream) {
  int shared_bytes = 0, processors = 0;
  PG_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  constexpr int64_t kQueryBytes = kAtoms * kAtomBytes + sizeof(QueryBound);
  const int64_t most =
      (shared_bytes - kQueriesBegin<kAtoms>) / kQueryBytes / kQueryStep * kQueryStep;
  // Equal parts of the queries, and more where few rows do not fill the device.
  const int64_t row_parts = grid_for(num_blocks(work), kGroups, processors);
  const int64_t least_parts = (work.num_queries + most - 1) / most;
  const int64_t wanted = std::max(least_parts, processors / row_parts);
  const int64_t at_once =
      ((work.num_queries + wanted - 1) / wanted + kQueryStep - 1) / kQueryStep * kQueryStep;
  const int64_t parts = (work.num_queries + at_once - 1) / at_once;
  const auto bytes = static_cast<int>(kQueriesBegin<kAtoms> + at_once * kQueryBytes);
  const auto kernel = large_products_wgmma_kernel<kKind, kAtoms>;
  PG_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(row_parts), static_cast<unsigned>(parts));
  kernel<<<grid, kThreads, bytes, stream>>>(work, static_cast<int>(at_once));
  PG_LAUNCH_CHECK("large_products_wgmma_kernel");
}

template <ProductKind kKind>
void launch_kind(const LargeProducts& work, int device, cudaStream_t stream) {
  if (work.value_bytes == kAtomBytes)
    launch<kKind, 1>(work, device, stream);
  else
    launch<kKind, 2>(work, device, stream);
}

}  // namespace

bool has_wgmma(const LargeProducts& work, int device) {
  if (work.value_bytes != kAtomBytes && work.value_bytes != 2 * kAtomBytes) return false;
  int major = 0, minor = 0;
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  PG_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0) return false;
  // The code of other targets only traps, and has next to no registers.
  cudaFuncAttributes attributes;
  PG_CUDA_CHECK(
      cudaFuncGetAttributes(&attributes, large_products_wgmma_kernel<ProductKind::kInt8, 1>));
  return attributes.numRegs > kSums;
}

void large_products_wgmma(const LargeProducts& work, int device, cudaStream_t stream) {
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
