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
      if (ids.admits(ids.id_once(i), limit)) continue;
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
                   const int64_t id = checked_id(ids, i, table.map.rows);
                   if (id == kPadding) {
                     copy(kPadding, i++, 1);
                     continue;
                   }
                   const int64_t row = checked_row(table, id);
                   const int64_t rows = run_length(table, ids, row, end - i);
                   copy(row, i, rows);
                   i += rows;
                 }
               });
}

bool have_common_bytes(const void* left, int64_t left_bytes, const void* right,
                       int64_t right_bytes) {
  const auto* a = static_cast<const char*>(left);
  const auto* b = static_cast<const char*>(right);
  return a != nullptr && b != nullptr && left_bytes > 0 && right_bytes > 0 && a < b + right_bytes &&
         b < a + left_bytes;
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_bad_id(const IdList& ids, int64_t i, int64_t id,
                                                         int64_t limit) {
  throw std::out_of_range(bad_id_message(BadId::kTableRow, ids.out_row(i), id, limit));
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_bad_row(const char* list, int64_t at, int64_t row,
                                                          int64_t limit) {
  throw std::out_of_range(std::string(list) + "[" + std::to_string(at) +
                          "] = " + std::to_string(row) + " is out of range for " +
                          std::to_string(limit) + " rows");
}

}  // namespace

bool overlaps(const TableView& table, const void* memory, int64_t num_bytes) {
  const TierMap& map = table.map;
  const auto is_in = [&](const char* rows, int64_t count) {
    return have_common_bytes(rows, count * table.row_bytes, memory, num_bytes);
  };
  for (int32_t r = 0; r < table.num_replicas; ++r)
    if (is_in(table.replicas[r], map.replicated)) return true;
  for (int32_t s = 0; s < map.num_shards; ++s) {
    const int64_t rows = map.block_rows > 0
                             ? std::min(map.block_rows, map.sharded - s * map.block_rows)
                             : (map.sharded - s + map.num_shards - 1) / map.num_shards;
    if (is_in(table.shards[s], rows)) return true;
  }
  const int64_t on_disk = map.rows - map.replicated - map.sharded - map.host;
  return is_in(table.host, map.host) || is_in(table.disk, on_disk);
}

bool overlaps(const IdList& ids, const void* memory, int64_t num_bytes) {
  return have_common_bytes(ids.ids, ids.count * ids.id_bytes, memory, num_bytes);
}

void check_ids(const IdList& ids, int64_t limit, int num_threads) {
  const int64_t bad = first_bad_position(ids, limit, num_threads);
  if (bad < ids.count) throw_bad_id(ids, bad, ids.id_once(bad), limit);
}

int64_t checked_id(const IdList& ids, int64_t i, int64_t limit) {
  const int64_t id = ids.id_once(i);
  if (!ids.admits(id, limit)) throw_bad_id(ids, i, id, limit);
  return id;
}

int64_t checked_row(const TableView& table, int64_t id) {
  if (table.order.value_bytes == 0) return id;
  const int64_t row = load_id_once(table.order.values, table.order.value_bytes, id);
  if (!is_below(row, table.map.rows)) throw_bad_row("order", id, row, table.map.rows);
  return row;
}

int64_t checked_out_row(const IdList& ids, int64_t i) {
  const int64_t row = ids.out_row(i);
  if (!is_below(row, ids.num_out_rows)) throw_bad_row("out_index", i, row, ids.num_out_rows);
  return row;
}

void gather_cpu(const TableView& table, const IdList& ids, char* out, int num_threads) {
  const int64_t row_bytes = table.row_bytes;
  for_each_run(table, ids, num_threads, [&](int64_t row, int64_t i, int64_t rows) {
    char* target = out + checked_out_row(ids, i) * row_bytes;
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
      char* target = table.row(row);
      if (target != nullptr) std::memcpy(target, value, rows * row_bytes);
      return;
    }
    for (int32_t r = 0; r < table.num_replicas; ++r)
      std::memcpy(table.replicas[r] + row * row_bytes, value, rows * row_bytes);
  });
}

}  // namespace peergraph
