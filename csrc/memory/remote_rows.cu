// The remote rows are sorted by key with their positions. Then one scan counts the distinct keys,
// and writes the results as it goes.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "memory/error_slot.h"
#include "memory/remote_rows.h"

namespace peergraph {
namespace {

// Positions are sorted as 32-bit numbers, which is half the traffic.
using Position = uint32_t;

template <typename Key>
__global__ void __launch_bounds__(kBlockThreads)
    locate_rows(const __grid_constant__ RemoteRowQuery query, int64_t* local, Key* keys,
                Position* positions, RemoteRowCounts* counts, ErrorSlot errors) {
  if (global_thread() == 0) *counts = {};
  for (int64_t i = global_thread(); i < query.ids.count; i += grid_threads()) {
    const int64_t id = query.ids.id(i);
    uint64_t key = query.keys.none;
    if (id >= 0 && id < query.split.rows) {
      local[i] = query.locate(id, &key);
    } else {
      local[i] = -1;
      record_bad_id(errors, i, id, query.split.rows);
    }
    keys[i] = static_cast<Key>(key);
    positions[i] = static_cast<Position>(i);
  }
}

/// Sorted keys of rows, those of rows of this machine at the end.
template <typename Key>
struct SortedKeys {
  const Key* keys;
  int64_t count;
  Key none;

  __device__ bool is_remote(int64_t i) const { return i < count && keys[i] != none; }
  __device__ bool is_first(int64_t i) const {
    return is_remote(i) && (i == 0 || keys[i] != keys[i - 1]);
  }
};

template <typename Key>
struct ReadFirst {
  SortedKeys<Key> sorted;
  __device__ Position operator()(int64_t i) const { return sorted.is_first(i) ? 1 : 0; }
};

/// Gets the number of distinct rows up to each sorted key.
template <typename Key>
struct WriteRow {
  SortedKeys<Key> sorted;
  const Position* positions;
  ShortKeys keys;
  RemoteRows out;
  RemoteRowCounts* counts;

  __device__ void operator()(int64_t i, Position rows) const {
    if (!sorted.is_remote(i)) return;
    out.positions[i] = positions[i];
    out.slots[i] = int64_t{rows} - 1;
    if (sorted.is_first(i)) out.keys[rows - 1] = keys.restore(sorted.keys[i]);
    if (!sorted.is_remote(i + 1)) *counts = {i + 1, rows};
  }
};

/// Parts of a piece of memory; without memory, their sizes alone are added up.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    char* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(piece);
  }

  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlign = 256;

  char* memory_;
  int64_t used_ = 0;
};

template <typename Key>
struct Scratch {
  RemoteRowCounts* counts;
  cub::DoubleBuffer<Key> keys;
  cub::DoubleBuffer<Position> positions;
  void* temporary = nullptr;  // of the sort, then of the scan
  size_t sort_bytes = 0;
  size_t scan_bytes = 0;
  int64_t used;

  Scratch(const RemoteRowQuery& query, void* memory) {
    Pieces pieces(memory);
    const int64_t count = query.ids.count;
    counts = pieces.take<RemoteRowCounts>(1);
    for (Key*& buffer : keys.d_buffers) buffer = pieces.take<Key>(count);
    for (Position*& buffer : positions.d_buffers) buffer = pieces.take<Position>(count);
    sort(query, nullptr);
    scan(query, {}, nullptr);
    temporary = pieces.take<char>(static_cast<int64_t>(std::max(sort_bytes, scan_bytes)));
    used = pieces.used();
  }

  void sort(const RemoteRowQuery& query, cudaStream_t stream) {
    PG_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(temporary, sort_bytes, keys, positions,
                                                  static_cast<Position>(query.ids.count), 0,
                                                  query.keys.bits, stream));
  }

  void scan(const RemoteRowQuery& query, const RemoteRows& out, cudaStream_t stream) {
    const SortedKeys<Key> sorted{keys.Current(), query.ids.count,
                                 static_cast<Key>(query.keys.none)};
    PG_CUDA_CHECK(cub::DeviceScan::InclusiveSum(
        temporary, scan_bytes,
        thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0),
                                        ReadFirst<Key>{sorted}),
        thrust::make_tabulate_output_iterator(
            WriteRow<Key>{sorted, positions.Current(), query.keys, out, counts}),
        query.ids.count, stream));
  }
};

template <typename Key>
RemoteRowCounts find(const RemoteRowQuery& query, const RemoteRows& out, int64_t* host_keys,
                     void* memory, const ErrorSlot& errors, cudaStream_t stream) {
  Scratch<Key> scratch(query, memory);
  locate_rows<<<grid_for(query.ids.count), kBlockThreads, 0, stream>>>(
      query, out.local, scratch.keys.Current(), scratch.positions.Current(), scratch.counts,
      errors);
  PG_LAUNCH_CHECK("locate_rows");
  scratch.sort(query, stream);
  scratch.scan(query, out, stream);
  const auto copy = [&](void* to, const void* from, size_t num_bytes) {
    PG_CUDA_CHECK(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, stream));
    PG_CUDA_CHECK(cudaStreamSynchronize(stream));
  };
  RemoteRowCounts counts;
  copy(&counts, scratch.counts, sizeof(counts));
  if (counts.rows > 0) copy(host_keys, out.keys, counts.rows * sizeof(int64_t));
  return counts;
}

/// Calls body(key); the type of the key is the shortest one that holds all keys.
template <typename Body>
auto with_key(const ShortKeys& keys, const Body& body) {
  return keys.bits <= 32 ? body(uint32_t{}) : body(uint64_t{});
}

}  // namespace

int64_t remote_rows_scratch(const RemoteRowQuery& query, int device) {
  PG_CHECK_ARG(query.ids.count <= UINT32_MAX, "ids must have fewer than 2^32 elements");
  DeviceGuard guard(device);
  return with_key(query.keys,
                  [&](auto key) { return Scratch<decltype(key)>(query, nullptr).used; });
}

RemoteRowCounts find_remote_rows_cuda(const RemoteRowQuery& query, const RemoteRows& out,
                                      int64_t* host_keys, void* scratch, const Launch& launch) {
  raise_pending(launch.device);
  if (query.ids.count == 0) return {};
  PG_CHECK_ARG(query.ids.count <= UINT32_MAX, "ids must have fewer than 2^32 elements");
  DeviceGuard guard(launch.device);
  const RemoteRowCounts counts = with_key(query.keys, [&](auto key) {
    return find<decltype(key)>(query, out, host_keys, scratch, error_slot(launch.device),
                               reinterpret_cast<cudaStream_t>(launch.stream));
  });
  // The stream has been synchronised: an error of these ids is raised here, not by a later call.
  raise_pending(launch.device);
  return counts;
}

}  // namespace peergraph
