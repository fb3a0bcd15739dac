// Edge softmax on a GPU: a warp for a row, with its scores in registers if they fit, so that memory
// is read once; a block for a long row.
#include <type_traits>

#include "aggregate/edge_softmax.h"
#include "aggregate/neighbor_partition.cuh"

namespace peergraph {
namespace {

constexpr int kLongThreads = 512;
constexpr int kLongWarps = kLongThreads / kWarpSize;
constexpr int64_t kLongScores = 1024;  // a row with at least so many edges gets a block
constexpr int kKept = 8;               // edges whose scores a lane keeps

/// Rows left to the second launch.
struct RowQueue {
  unsigned long long* count = nullptr;
  int64_t* rows = nullptr;
};

/// Running softmax denominator: sum of exp(score - top).
template <typename Value>
struct Exponents {
  Value top = -INFINITY;
  Value sum = 0;

  __device__ __forceinline__ void add(Value score) {
    if (score > top) {
      sum = sum * exp(top - score) + 1;
      top = score;
    } else if (score != -INFINITY) {
      sum += exp(score - top);
    }
  }
  __device__ __forceinline__ void add(const Exponents& other) {
    const Value higher = other.top > top ? other.top : top;
    if (higher != -INFINITY)
      sum = sum * exp(top - higher) + other.sum * exp(other.top - higher);
    else
      sum += other.sum;
    top = higher;
  }
  __device__ __forceinline__ Exponents from_xor(int offset) const {
    Exponents other;
    other.top = __shfl_xor_sync(kFullMask, top, offset);
    other.sum = __shfl_xor_sync(kFullMask, sum, offset);
    return other;
  }
};

/// Running sum of softmax times gradient.
template <typename Value>
struct Products {
  Value sum = 0;

  __device__ __forceinline__ void add(Value product) { sum += product; }
  __device__ __forceinline__ void add(const Products& other) { sum += other.sum; }
  __device__ __forceinline__ Products from_xor(int offset) const {
    return {__shfl_xor_sync(kFullMask, sum, offset)};
  }
};

/// Score of one edge, or softmax and its gradient.
template <typename T, bool kBackward>
struct Entry {
  using Value = AccumulatorOf<T>;
  using Total = typename std::conditional<kBackward, Products<Value>, Exponents<Value>>::type;
  Value value;
  Value grad;

  __device__ __forceinline__ void read(const EdgeSoftmax& op, int64_t at) {
    value = widen(static_cast<const T*>(op.values)[at]);
    if (kBackward) grad = widen(static_cast<const T*>(op.grad)[at]);
  }
  __device__ __forceinline__ void count(Total* total) const {
    total->add(kBackward ? value * grad : value);
  }
  __device__ __forceinline__ Value result(const Total& total) const {
    if constexpr (kBackward) {
      return value * (grad - total.sum);
    } else {
      return exp(value - total.top) / total.sum;
    }
  }
};

/// The threads that work on a row: one warp, or all warps of a block. In a group of 2^lanes_log2
/// lanes each lane has one head; the groups take turns over the edges.
template <bool kBlock>
struct Team {
  int lanes;
  int lane;
  int group;
  int groups;

  __device__ __forceinline__ explicit Team(int lanes_log2) {
    lanes = 1 << lanes_log2;
    lane = lane_id() & (lanes - 1);
    const int index = kBlock ? static_cast<int>(threadIdx.x) : lane_id();
    group = index >> lanes_log2;
    groups = (kBlock ? kLongThreads : kWarpSize) >> lanes_log2;
  }

  /// The total of all threads of a head, in a fixed order.
  template <typename Total>
  __device__ __forceinline__ Total all(Total total) const {
    for (int offset = lanes; offset < kWarpSize; offset *= 2) total.add(total.from_xor(offset));
    if constexpr (kBlock) {
      // Raw memory: a shared variable cannot have a constructor.
      __shared__ alignas(Total) char memory[kLongWarps * kWarpSize * sizeof(Total)];
      Total(*of_warps)[kWarpSize] = reinterpret_cast<Total(*)[kWarpSize]>(memory);
      __syncthreads();
      of_warps[threadIdx.x / kWarpSize][lane_id()] = total;
      __syncthreads();
      total = Total{};
      for (int w = 0; w < kLongWarps; ++w) total.add(of_warps[w][lane]);
    }
    return total;
  }
};

template <typename T, bool kBackward, bool kBlock>
__device__ __forceinline__ void softmax_row(const EdgeSoftmax& op, int lanes_log2, int64_t row) {
  const Team<kBlock> team(lanes_log2);
  const int64_t begin = op.matrix.begin(row), end = op.matrix.end(row);
  T* out = static_cast<T*>(op.out);
  for (int64_t first = 0; first < op.heads; first += team.lanes) {
    const int64_t head = first + team.lane;
    const bool on = head < op.heads;
    typename Entry<T, kBackward>::Total total;
    Entry<T, kBackward> kept[kKept];
    int64_t places[kKept];
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int64_t position = begin + k * team.groups + team.group;
      places[k] = -1;
      if (position >= end || !on) continue;
      places[k] = op.matrix.edge(position) * op.heads + head;
      kept[k].read(op, places[k]);
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (places[k] >= 0) kept[k].count(&total);
    const int64_t rest = begin + kKept * team.groups + team.group;
    if (on) {
      for (int64_t position = rest; position < end; position += team.groups) {
        Entry<T, kBackward> entry;
        entry.read(op, op.matrix.edge(position) * op.heads + head);
        entry.count(&total);
      }
    }
    total = team.all(total);
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (places[k] >= 0) narrow(kept[k].result(total), out + places[k]);
    if (!on) continue;
    for (int64_t position = rest; position < end; position += team.groups) {
      const int64_t place = op.matrix.edge(position) * op.heads + head;
      Entry<T, kBackward> entry;
      entry.read(op, place);
      narrow(entry.result(total), out + place);
    }
  }
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kMaxRowThreads)
    softmax_rows(const __grid_constant__ EdgeSoftmax op, int lanes_log2, RowQueue queue) {
  for (int64_t row = global_warp(); row < op.matrix.num_rows; row += grid_warps()) {
    if (queue.count != nullptr && op.matrix.end(row) - op.matrix.begin(row) > kLongScores) {
      if (lane_id() == 0) queue.rows[atomicAdd(queue.count, 1ull)] = row;
      continue;
    }
    softmax_row<T, kBackward, false>(op, lanes_log2, row);
  }
}

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kLongThreads)
    softmax_long_rows(const __grid_constant__ EdgeSoftmax op, int lanes_log2, RowQueue queue) {
  const int64_t count = static_cast<int64_t>(*queue.count);
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
    softmax_row<T, kBackward, true>(op, lanes_log2, queue.rows[i]);
}

template <typename T, bool kBackward>
void launch_rows(const EdgeSoftmax& op, int lanes_log2, const RowQueue& queue,
                 cudaStream_t stream) {
  const Schedule& schedule = op.matrix.schedule;
  softmax_rows<T, kBackward>
      <<<blocks_for_items(op.matrix.num_rows, schedule), row_threads(schedule), 0, stream>>>(
          op, lanes_log2, queue);
  PG_LAUNCH_CHECK("softmax_rows");
  if (queue.count == nullptr) return;
  const unsigned blocks = grid_for(op.matrix.num_edges, kLongScores, 1024);
  softmax_long_rows<T, kBackward><<<blocks, kLongThreads, 0, stream>>>(op, lanes_log2, queue);
  PG_LAUNCH_CHECK("softmax_long_rows");
}

/// Allocates a queue with room for all rows that can be long.
RowQueue make_row_queue(int64_t num_edges, const Allocate& allocate, cudaStream_t stream) {
  RowQueue queue;
  if (num_edges <= kLongScores) return queue;
  const int64_t capacity = num_edges / kLongScores;
  queue.count = static_cast<unsigned long long*>(
      allocate((capacity + 1) * static_cast<int64_t>(sizeof(int64_t))));
  queue.rows = reinterpret_cast<int64_t*>(queue.count) + 1;
  PG_CUDA_CHECK(cudaMemsetAsync(queue.count, 0, sizeof(*queue.count), stream));
  return queue;
}

}  // namespace

void edge_softmax_cuda(const EdgeSoftmax& op, const Launch& launch, const Allocate& allocate) {
  if (op.matrix.num_edges == 0 || op.heads == 0) return;
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const RowQueue queue = make_row_queue(op.matrix.num_edges, allocate, stream);
  int lanes_log2 = 0;
  while (lanes_log2 < 5 && int64_t{1} << lanes_log2 < op.heads) ++lanes_log2;
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    op.grad == nullptr ? launch_rows<T, false>(op, lanes_log2, queue, stream)
                       : launch_rows<T, true>(op, lanes_log2, queue, stream);
  });
}

}  // namespace peergraph
