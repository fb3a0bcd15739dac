// Sums over local and remote neighbours on a GPU (MGG 3.3, 3.4). A warp requests the rows of some
// remote edges, sums local edges while the rows come over the link, and then adds the rows. While
// some warps of a multiprocessor wait for the link, others sum.
#include "aggregate/interleaved_spmm.h"
#include "aggregate/lane_columns.cuh"
#include "aggregate/neighbor_partition.cuh"
#include "aggregate/spmm_output.cuh"

namespace peergraph {
namespace {

constexpr int kMaxInterleavedThreads = kMaxInterleavedWarps * kWarpSize;

/// Up to kWarpSize adjacent rows, each with local and with remote edges. Lane k holds the edges of
/// row first_row + k.
struct RowPairs {
  int64_t first_row;
  int64_t first_local;   // position of the first local edge of first_row
  int64_t first_remote;  // position of the first remote edge of first_row
  EdgeSpan local;        // local edges of this lane's row, counted from first_local
  EdgeSpan remote;       // remote edges of this lane's row, counted from first_remote
  unsigned left;         // bit k: row first_row + k has not been summed yet; equal in all lanes

  /// Returns k of the next row first_row + k that has not been summed yet; -1: there is none.
  __device__ __forceinline__ int next() const { return __ffs(left) - 1; }

  /// Return the local and the remote edges of row first_row + `row`; no edges for row -1.
  __device__ __forceinline__ EdgeSpan local_of(int row) const { return of(local, row); }
  __device__ __forceinline__ EdgeSpan remote_of(int row) const { return of(remote, row); }

 private:
  static __device__ __forceinline__ EdgeSpan of(const EdgeSpan& own, int row) {
    const EdgeSpan edges{__shfl_sync(kFullMask, own.begin, row & (kWarpSize - 1)),
                         __shfl_sync(kFullMask, own.end, row & (kWarpSize - 1))};
    return row < 0 ? EdgeSpan{0, 0} : edges;
  }
};

/// The work of one launch: all rows, or the chunks that an earlier launch has queued: first the
/// chunks of a row's local edges, then the chunks of its remote edges.
struct PairWork {
  CsrMatrix local;
  CsrMatrix remote;
  ChunkQueue queue;
  bool queued = false;
  int32_t rows_per_run = 1;  // at most kWarpSize

  __device__ __forceinline__ int64_t size() const {
    const int64_t count = static_cast<int64_t>(*queue.count);
    return count < queue.capacity ? count : queue.capacity;
  }

  __device__ __forceinline__ int64_t num_runs() const {
    return queued ? size() : (local.num_rows + rows_per_run - 1) / rows_per_run;
  }

  /// The rows of run `i` without the queued rows.
  __device__ __forceinline__ RowPairs run(int64_t i) const {
    if (queued) return chunk(queue.chunks[i]);
    RowPairs run;
    run.first_row = i * rows_per_run;
    const int64_t row = run.first_row + lane_id();
    const bool valid = lane_id() < rows_per_run && row < local.num_rows;
    const int64_t local_begin = valid ? local.begin(row) : 0;
    const int64_t local_end = valid ? local.end(row) : 0;
    const int64_t remote_begin = valid ? remote.begin(row) : 0;
    const int64_t remote_end = valid ? remote.end(row) : 0;
    run.first_local = __shfl_sync(kFullMask, local_begin, 0);
    run.first_remote = __shfl_sync(kFullMask, remote_begin, 0);
    run.local = {static_cast<uint32_t>(local_begin - run.first_local),
                 static_cast<uint32_t>(local_end - run.first_local)};
    run.remote = {static_cast<uint32_t>(remote_begin - run.first_remote),
                  static_cast<uint32_t>(remote_end - run.first_remote)};
    const int64_t locals = local_end - local_begin, remotes = remote_end - remote_begin;
    const bool is_cut = queue.capacity != 0 && max(locals, remotes) > local.schedule.long_row;
    unsigned cut = __ballot_sync(kFullMask, is_cut);
    run.left = __ballot_sync(kFullMask, valid && !is_cut);
    const int64_t parts = chunks_of(locals) + chunks_of(remotes);
    for (; blockIdx.y == 0 && cut != 0; cut &= cut - 1) {
      const int lane = __ffs(cut) - 1;
      enqueue_chunks(queue, run.first_row + lane,
                     static_cast<int32_t>(__shfl_sync(kFullMask, parts, lane)));
    }
    return run;
  }

  __device__ __forceinline__ int64_t degree(int64_t row) const {
    return local.end(row) - local.begin(row) + remote.end(row) - remote.begin(row);
  }

  /// The number of chunks of a row's local edges; the chunks of its remote edges follow them.
  __device__ __forceinline__ int64_t local_chunks(int64_t row) const {
    return chunks_of(local.end(row) - local.begin(row));
  }

 private:
  /// The number of chunks as in spmm_rows: a short row is one chunk.
  __device__ __forceinline__ int64_t chunks_of(int64_t edges) const {
    if (edges <= local.schedule.long_row) return edges > 0 ? 1 : 0;
    return (edges + local.schedule.chunk - 1) / local.schedule.chunk;
  }

  /// The first edge of a chunk of the edges from `begin` to `end`, and the chunk's number of edges.
  __device__ __forceinline__ int64_t cut(int64_t begin, int64_t end, int64_t part,
                                         EdgeSpan* edges) const {
    const bool is_whole = end - begin <= local.schedule.long_row;
    const int64_t first = is_whole ? begin : begin + part * local.schedule.chunk;
    const int64_t last = is_whole ? end : min(first + local.schedule.chunk, end);
    *edges = {0, static_cast<uint32_t>(last - first)};
    return first;
  }

  __device__ __forceinline__ RowPairs chunk(const Chunk& chunk) const {
    const int64_t row = chunk.row, locals = local_chunks(row);
    EdgeSpan edges;
    if (chunk.part < locals) {
      const int64_t begin = cut(local.begin(row), local.end(row), chunk.part, &edges);
      return {row, begin, 0, edges, {0, 0}, 1};
    }
    const int64_t begin = cut(remote.begin(row), remote.end(row), chunk.part - locals, &edges);
    return {row, 0, begin, {0, 0}, edges, 1};
  }
};

/// Remote edges of a warp, up to kWarpSize: one in each lane.
template <typename T>
struct RemoteEdges {
  int count;
  unsigned long long row;  // address of the source's features
  int64_t position;        // in the matrix
  T scale;
};

/// The rows of some remote edges that are being read: kBatch for each group of lanes.
template <MessageKind kKind, typename T, int kVec, int kBatch>
struct RemoteRows {
  using Value = AccumulatorOf<T>;
  Pack<T, kVec> rows[kBatch];

  /// Requests the rows of the edges from `step` on.
  __device__ __forceinline__ void request(const LaneColumns<kVec, 1>& lane,
                                          const RemoteEdges<T>& edges, int step) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int edge = step + k * lane.groups + lane.group;
      rows[k] = {};
      const auto* row = reinterpret_cast<const T*>(__shfl_sync(kFullMask, edges.row, edge));
      load_pack_if(edge < edges.count && lane.active[0], row + lane.columns[0], &rows[k]);
    }
  }

  /// Adds the messages of these edges, in their order in each group of lanes.
  __device__ __forceinline__ void add_to(Value (&sum)[kVec], const CsrMatrix& matrix,
                                         const Operands& operands, const LaneColumns<kVec, 1>& lane,
                                         const RemoteEdges<T>& edges, int step) const {
    const T* e = static_cast<const T*>(operands.e);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int edge = step + k * lane.groups + lane.group;
      Value scale = 1;
      if constexpr (kKind == MessageKind::kScale)
        scale = widen(__shfl_sync(kFullMask, edges.scale, edge));
      int64_t position = 0;
      if constexpr (kKind == MessageKind::kMul)
        position = __shfl_sync(kFullMask, edges.position, edge);
      if (edge >= edges.count || !lane.active[0]) continue;
      Pack<T, kVec> weights = {};
      if constexpr (kKind == MessageKind::kMul)
        weights =
            load_pack<T, kVec>(e + matrix.edge(position) * operands.e_columns + lane.columns[0]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const Value weight = kKind == MessageKind::kMul ? widen(weights.values[i]) : scale;
        sum[i] += apply_kind<kKind>(operands.message, widen(rows[k].values[i]), weight);
      }
    }
  }
};

template <MessageKind kKind, typename T, int kVec, int kBatch>
__global__ void __launch_bounds__(kMaxInterleavedThreads, 1)
    interleaved_rows(const __grid_constant__ PairWork work,
                     const __grid_constant__ Operands local_operands,
                     const __grid_constant__ Operands remote_operands, LaneShape shape,
                     SpmmOutput<T> output) {
  using Value = AccumulatorOf<T>;
  // As many rows as fit into registers together with the remote rows.
  constexpr bool kFew = kKind != MessageKind::kMul && sizeof(T) == 4 && kBatch < 8;
  constexpr int kInFlight = kFew ? 8 : 4;
  const LaneColumns<kVec, 1> lane(shape, local_operands);
  const int own_lane = lane_id(), batch = kBatch * lane.groups;
  const int64_t num_runs = work.num_runs();
  for (int64_t item = global_warp(); item < num_runs; item += grid_warps()) {
    RowPairs run = work.run(item);
    int row = run.next();
    if (row < 0) continue;
    EdgeSpan local = run.local_of(row), remote = run.remote_of(row);
    EdgeAhead<T> local_ahead, remote_ahead;
    if (local.begin + own_lane < local.end)
      read_ahead<kKind>(work.local, local_operands, run.first_local + local.begin + own_lane,
                        &local_ahead);
    const auto read_remote = [&](const EdgeSpan& span) {
      if (span.begin + own_lane < span.end)
        read_ahead<kKind>(work.remote, remote_operands, run.first_remote + span.begin + own_lane,
                          &remote_ahead);
    };
    // The edges that read_remote has read.
    const auto find_remote = [&](const EdgeSpan& span) {
      RemoteEdges<T> edges;
      edges.count = static_cast<int>(min(span.end - span.begin, uint32_t{kWarpSize}));
      edges.row = 0;
      if (own_lane < edges.count)
        edges.row = static_cast<unsigned long long>(remote_operands.x_rows[remote_ahead.column]);
      edges.position = run.first_remote + span.begin + own_lane;
      edges.scale = remote_ahead.scale;
      return edges;
    };
    read_remote(remote);
    RemoteEdges<T> edges = find_remote(remote);
    while (row >= 0) {
      run.left &= run.left - 1;
      const int next_row = run.next();
      const EdgeSpan next_local = run.local_of(next_row), next_remote = run.remote_of(next_row);
      Value sum[1][kVec] = {};
      Value remote_sum[kVec] = {};
      // Local edges are summed in pieces of kWarpSize, equally many after each batch of remote
      // edges.
      const uint32_t remotes = remote.end - remote.begin;
      const uint32_t batches =
          remotes / kWarpSize * (kWarpSize / batch) + (remotes % kWarpSize + batch - 1) / batch;
      const uint32_t pieces = (local.end - local.begin + kWarpSize - 1) / kWarpSize;
      const uint32_t pieces_of_batch = (pieces + max(batches, 1u) - 1) / max(batches, 1u);
      uint32_t at = local.begin;
      bool has_local = true;
      for (EdgeSpan left = remote;;) {
        const bool is_last = left.end - left.begin <= kWarpSize;
        const EdgeSpan following =
            is_last ? next_remote : EdgeSpan{left.begin + kWarpSize, left.end};
        read_remote(following);
        for (int step = 0; step == 0 || step < edges.count; step += batch) {
          RemoteRows<kKind, T, kVec, kBatch> rows;
          if (edges.count > 0) rows.request(lane, edges, step);
          for (uint32_t piece = 0; has_local && (piece == 0 || piece < pieces_of_batch); ++piece) {
            const uint32_t end = min(at + kWarpSize, local.end);
            each_message<kKind, RowLayout::kDense, kInFlight, T>(
                work.local, local_operands, lane, run.first_local, EdgeSpan{at, end},
                [&] { return end < local.end ? EdgeSpan{end, local.end} : next_local; },
                &local_ahead, [&](int64_t, int, int i, Value value) { sum[0][i] += value; });
            at = end;
            has_local = at < local.end;
          }
          if (edges.count > 0)
            rows.add_to(remote_sum, work.remote, remote_operands, lane, edges, step);
        }
        edges = find_remote(following);
        if (is_last) break;
        left = following;
      }
      // All lanes exchange values before any lane writes: the writes diverge.
      // The two sums are added last, as if one kernel had added the remote sum to the local sum
      // that another kernel had written.
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[0][i] = sum_over_groups(sum[0][i], lane.lanes);
      if (remotes > 0) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[0][i] += sum_over_groups(remote_sum[i], lane.lanes);
      }
      __syncwarp();
      const int64_t degree = int64_t{local.end - local.begin} + remotes;
      write_sums<T>(local_operands, lane, run.first_row + row, degree, work.queued ? item : -1,
                    output, sum);
      row = next_row;
      local = next_local;
      remote = next_remote;
    }
  }
}

/// Adds up the chunks of each long row, in their order.
template <typename T>
__global__ void __launch_bounds__(kMaxInterleavedThreads, 1)
    combine_interleaved(const __grid_constant__ PairWork work, int64_t columns,
                        SpmmOutput<T> output) {
  const int64_t size = work.size();
  for (int64_t slot = global_warp(); slot < size; slot += grid_warps()) {
    const Chunk chunk = work.queue.chunks[slot];
    if (chunk.part != 0) continue;
    const int32_t locals = static_cast<int32_t>(work.local_chunks(chunk.row));
    for (int64_t c = lane_id(); c < columns; c += kWarpSize) {
      AccumulatorOf<T> sum = 0, remote_sum = 0;
      const auto partial = [&](int32_t k) {
        return output.partial[(slot + k) * output.partial_stride + c];
      };
      for (int32_t k = 0; k < locals; ++k) sum += partial(k);
      for (int32_t k = locals; k < chunk.parts; ++k) remote_sum += partial(k);
      sum += remote_sum;
      narrow(output.result(sum, work.degree(chunk.row)), output.out + chunk.row * columns + c);
    }
  }
}

template <MessageKind kKind, typename T, int kVec, int kBatch>
void launch_rows(PairWork work, const InterleavedSpmm& op, const LaneLaunch<kVec, 1>& shape,
                 const SpmmOutput<T>& output, cudaStream_t stream) {
  const int32_t warps = op.interleaving.warps_per_block;
  const unsigned threads = static_cast<unsigned>(warps * kWarpSize);
  const int64_t runs = (work.local.num_rows + work.rows_per_run - 1) / work.rows_per_run;
  const dim3 rows(grid_for(runs, warps, int64_t{1} << 30), shape.slices);
  interleaved_rows<kKind, T, kVec, kBatch><<<rows, threads, 0, stream>>>(
      work, op.local_operands, op.remote_operands, shape.shape, output);
  PG_LAUNCH_CHECK("interleaved_rows");
  if (work.queue.capacity == 0) return;
  work.queued = true;
  const unsigned blocks = grid_for(work.queue.capacity, warps, 1 << 14);
  interleaved_rows<kKind, T, kVec, kBatch><<<dim3(blocks, shape.slices), threads, 0, stream>>>(
      work, op.local_operands, op.remote_operands, shape.shape, output);
  PG_LAUNCH_CHECK("interleaved_rows of chunks");
  combine_interleaved<T><<<blocks, threads, 0, stream>>>(work, op.local_operands.columns, output);
  PG_LAUNCH_CHECK("combine_interleaved");
}

template <MessageKind kKind, typename T, int kVec>
void launch_for_partition(const PairWork& work, const InterleavedSpmm& op,
                          const LaneLaunch<kVec, 1>& shape, const SpmmOutput<T>& output,
                          cudaStream_t stream) {
  // Vectors of each lane; for messages with edge values only one number is compiled.
  const int groups = kWarpSize >> shape.shape.lanes_log2;
  const int batch = std::min(op.interleaving.partition, kWarpSize) / groups;
  if constexpr (kKind == MessageKind::kMul) {
    launch_rows<kKind, T, kVec, 4>(work, op, shape, output, stream);
  } else if (batch >= 8) {
    launch_rows<kKind, T, kVec, 8>(work, op, shape, output, stream);
  } else if (batch >= 4) {
    launch_rows<kKind, T, kVec, 4>(work, op, shape, output, stream);
  } else if (batch >= 2) {
    launch_rows<kKind, T, kVec, 2>(work, op, shape, output, stream);
  } else {
    launch_rows<kKind, T, kVec, 1>(work, op, shape, output, stream);
  }
}

template <typename T>
void launch_interleaved(const InterleavedSpmm& op, const Allocate& allocate, cudaStream_t stream) {
  constexpr int kVec = 16 / sizeof(T);
  const Operands& operands = op.local_operands;
  PG_CHECK_ARG(
      can_use_vectors<T>(operands, op.out) && can_use_vectors<T>(op.remote_operands, op.out),
      "rows must begin at multiples of 16 bytes");
  const LaneLaunch<kVec, 1> shape = lane_launch<kVec, 1>(operands);
  PairWork work;
  work.local = op.local;
  work.remote = op.remote;
  work.queue = make_queue(op.local.schedule.max_chunks, allocate, stream);
  // Edges of a run are counted in 32 bits.
  const bool is_large = op.local.num_edges + op.remote.num_edges >= int64_t{1} << 32;
  work.rows_per_run = is_large ? 1 : op.interleaving.distance;
  auto* partial = allocate_partials<AccumulatorOf<T>>(op.local, operands.columns, allocate);
  const SpmmOutput<T> output{static_cast<T*>(op.out), partial, operands.columns, op.mean, false,
                             operands.columns};
  if (operands.message == Message::kCopyU) {
    launch_for_partition<MessageKind::kCopyU, T>(work, op, shape, output, stream);
  } else if (operands.e_columns == 1) {
    launch_for_partition<MessageKind::kScale, T>(work, op, shape, output, stream);
  } else {
    launch_for_partition<MessageKind::kMul, T>(work, op, shape, output, stream);
  }
}

}  // namespace

void interleaved_spmm_cuda(const InterleavedSpmm& op, const Launch& launch,
                           const Allocate& allocate) {
  const Operands& operands = op.local_operands;
  if (op.local.num_rows == 0 || operands.columns == 0) return;
  check_columns(op.local);
  check_columns(op.remote);
  const bool is_mul = operands.message == Message::kMul &&
                      (operands.e_columns == 1 || operands.e_columns == operands.columns);
  PG_CHECK_ARG(operands.message == Message::kCopyU || is_mul,
               "messages of remote edges are copies, or products with one value or all values");
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  if (op.dtype == DType::kFloat32) return launch_interleaved<float>(op, allocate, stream);
  PG_CHECK_ARG(op.dtype == DType::kFloat64,
               "local and remote edges are summed in float32 and float64");
  launch_interleaved<double>(op, allocate, stream);
}

}  // namespace peergraph
