#include <algorithm>
#include <cub/device/device_scan.cuh>

#include "common/cuda_check.cuh"
#include "common/partition_point.h"
#include "memory/row_lists.h"

namespace peergraph {
namespace {

// As many tables fit the arguments of a kernel.
constexpr int kMostTables = 48;

/// The lists of several tables, one after the other.
struct JoinedLists {
  RowLists tables[kMostTables];
  int64_t first[kMostTables + 1];  // of the items of each table; behind them, their number
  int count = 0;

  PG_HD int64_t num_items() const { return first[count]; }

  __device__ int table_of(int64_t item) const {
    return partition_point(1, count, [&](int table) { return first[table] <= item; }) - 1;
  }
};

/// Calls body(joined, number of the first table) for as many tables at a time as fit.
template <typename NumItems, typename Body>
void for_joined(const std::vector<RowLists>& lists, const NumItems& num_items, const Body& body) {
  for (size_t begin = 0; begin < lists.size(); begin += kMostTables) {
    JoinedLists joined;
    joined.first[0] = 0;
    for (size_t i = begin; i < std::min(begin + kMostTables, lists.size()); ++i) {
      joined.tables[joined.count] = lists[i];
      joined.first[joined.count + 1] = joined.first[joined.count] + num_items(lists[i]);
      ++joined.count;
    }
    if (joined.num_items() > 0) body(joined, begin);
  }
}

/// The items of a table are a 0 and the lengths of its lists.
__global__ void list_lengths(const __grid_constant__ JoinedLists lists, int64_t* lengths,
                             int64_t* broken) {
  for (int64_t item = global_thread(); item < lists.num_items(); item += grid_threads()) {
    const int t = lists.table_of(item);
    const RowLists& table = lists.tables[t];
    const int64_t number = item - lists.first[t] - 1;
    int64_t length = 0;
    if (number >= 0) {
      const int64_t* const list = table.list(number);
      if (table.holds(list))
        length = list[1] - list[0];
      else
        *broken = 1;
    }
    lengths[item] = length;
  }
}

__global__ void list_ends(const __grid_constant__ JoinedLists lists, const int64_t* sums,
                          int64_t* sizes) {
  for (int64_t item = global_thread(); item < lists.num_items(); item += grid_threads()) {
    const int t = lists.table_of(item);
    const int64_t first = lists.first[t];
    const int64_t end = sums[item] - sums[first];
    lists.tables[t].ends[item - first] = end;
    if (item + 1 == lists.first[t + 1]) sizes[t] = end;
  }
}

/// The items of a table are the elements of its lists.
__global__ void list_places(const __grid_constant__ JoinedLists lists) {
  for (int64_t item = global_thread(); item < lists.num_items(); item += grid_threads()) {
    const int t = lists.table_of(item);
    const RowLists& table = lists.tables[t];
    const int64_t at = item - lists.first[t];
    // The last list that begins at or before the element: empty ones are before it.
    const auto begins = [&](int64_t list) { return table.ends[list] <= at; };
    const int64_t own = partition_point(int64_t{1}, table.count(), begins) - 1;
    table.places[at] = table.list(own)[0] + at - table.ends[own];
  }
}

}  // namespace

void write_list_ends_cuda(const std::vector<RowLists>& lists, int64_t* sizes,
                          const Allocate& allocate, const Launch& launch) {
  const DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const auto words = (lists.size() + 1) * sizeof(int64_t);
  auto* const on_device = static_cast<int64_t*>(allocate(static_cast<int64_t>(words)));
  int64_t* const broken = on_device + lists.size();
  PG_CUDA_CHECK(cudaMemsetAsync(broken, 0, sizeof(int64_t), stream));
  const auto num_items = [](const RowLists& of) { return of.count() + 1; };
  for_joined(lists, num_items, [&](const JoinedLists& joined, size_t begin) {
    const int64_t count = joined.num_items();
    auto* const sums =
        static_cast<int64_t*>(allocate(count * static_cast<int64_t>(sizeof(int64_t))));
    list_lengths<<<grid_for(count), kBlockThreads, 0, stream>>>(joined, sums, broken);
    PG_LAUNCH_CHECK("list_lengths");
    size_t bytes = 0;
    PG_CUDA_CHECK(cub::DeviceScan::InclusiveSum(nullptr, bytes, sums, sums, count, stream));
    void* const scratch = allocate(static_cast<int64_t>(bytes));
    PG_CUDA_CHECK(cub::DeviceScan::InclusiveSum(scratch, bytes, sums, sums, count, stream));
    list_ends<<<grid_for(count), kBlockThreads, 0, stream>>>(joined, sums, on_device + begin);
    PG_LAUNCH_CHECK("list_ends");
  });
  PG_CUDA_CHECK(cudaMemcpyAsync(sizes, on_device, words, cudaMemcpyDeviceToHost, stream));
}

void write_list_places_cuda(const std::vector<RowLists>& lists, const Launch& launch) {
  const DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const auto num_items = [](const RowLists& of) { return of.num_elements; };
  for_joined(lists, num_items, [&](const JoinedLists& joined, size_t) {
    list_places<<<grid_for(joined.num_items()), kBlockThreads, 0, stream>>>(joined);
    PG_LAUNCH_CHECK("list_places");
  });
}

}  // namespace peergraph
