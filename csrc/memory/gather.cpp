#include "memory/gather.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/check.h"
#include "common/parallel.h"
#include "memory/bad_id.h"

namespace peergraph {
namespace {

constexpr int64_t kGrainBytes = 256 << 10;
constexpr int64_t kGrainIds = 64 << 10;

int64_t rows_per_grain(int64_t row_bytes) {
  // Even a narrow row costs about as much as copying 64 bytes.
  return std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(64, row_bytes));
}

int64_t first_bad_position(const IdList& ids, int64_t limit, int num_threads) {
  std::atomic<int64_t> first{ids.count};
  parallel_for(ids.count, kGrainIds, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (ids.admits(ids.id(i), limit)) continue;
      int64_t seen = first.load();
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  });
  return first.load();
}

/// The number of rows, from `row` on, that are contiguous both in the table and in the caller's
/// memory; at most `limit`.
int64_t run_length(const TableView& table, const IdList& ids, int64_t row, int64_t limit) {
  if (ids.id_bytes != 0 || ids.out_index != nullptr || table.order.value_bytes != 0) return 1;
  const int64_t in_shards = row - table.map.replicated;
  if (in_shards < 0) return std::min(limit, -in_shards);
  if (in_shards >= table.map.sharded) {
    const int64_t before_disk = table.map.sharded + table.map.host - in_shards;
    return before_disk > 0 ? std::min(limit, before_disk) : limit;
  }
  return std::min(limit, table.map.contiguous_rows(in_shards));
}

/// Calls copy(internal row, position, rows) for runs of rows that one memcpy can copy. The row of
/// padding is kPadding.
template <typename Copy>
void for_each_run(const TableView& table, const IdList& ids, int num_threads, const Copy& copy) {
  check_ids(ids, table.map.rows, num_threads);
  if (table.row_bytes == 0) return;
  parallel_for(ids.count, rows_per_grain(table.row_bytes), num_threads,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end;) {
                   if (ids.id(i) == kPadding) {
                     copy(kPadding, i++, 1);
                     continue;
                   }
                   const int64_t row = table.order(ids.id(i));
                   const int64_t rows = run_length(table, ids, row, end - i);
                   copy(row, i, rows);
                   i += rows;
                 }
               });
}

}  // namespace

void check_ids(const IdList& ids, int64_t limit, int num_threads) {
  const int64_t bad = first_bad_position(ids, limit, num_threads);
  if (bad < ids.count)
    throw std::out_of_range(bad_id_message(BadId::kTableRow, ids.out_row(bad), ids.id(bad), limit));
}

void gather_cpu(const TableView& table, const IdList& ids, char* out, int num_threads) {
  const int64_t row_bytes = table.row_bytes;
  for_each_run(table, ids, num_threads, [&](int64_t row, int64_t i, int64_t rows) {
    char* target = out + ids.out_row(i) * row_bytes;
    if (row == kPadding)
      std::memset(target, 0, row_bytes);
    else
      std::memcpy(target, table.row(row), rows * row_bytes);
  });
}

void scatter_cpu(const TableView& table, const IdList& ids, const char* values, int num_threads) {
  const int64_t row_bytes = table.row_bytes;
  for_each_run(table, ids, num_threads, [&](int64_t row, int64_t i, int64_t rows) {
    const char* value = values + i * row_bytes;
    if (row >= table.map.replicated) {
      std::memcpy(table.row(row), value, rows * row_bytes);
      return;
    }
    for (int32_t r = 0; r < table.num_replicas; ++r)
      std::memcpy(table.replicas[r] + row * row_bytes, value, rows * row_bytes);
  });
}

}  // namespace peergraph
