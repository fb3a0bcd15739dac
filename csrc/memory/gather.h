// Gathers and scatters of rows of tables, on any of its tiers (WholeGraph III-C3).
#pragma once

#include <cstdint>
#include <vector>

#include "common/allocate.h"
#include "common/host_device.h"
#include "common/read_once.h"
#include "memory/table_view.h"

namespace peergraph {

constexpr int64_t kPadding = -1;

/// The user ids that a gather or scatter takes: a list of int32 or int64, or the range first,
/// first + 1, ...
struct IdList {
  const void* ids = nullptr;
  int32_t id_bytes = 0;  // 4 or 8; 0: the range
  int64_t first = 0;
  int64_t count = 0;
  // Gathers only: the row of id(i) becomes row out_index[i] of the result. Null: row i.
  const int64_t* out_index = nullptr;
  int64_t num_out_rows = INT64_MAX;  // bound of out_index
  // With out_index only: the ids are sorted by row, and those from *host_begin on have their rows
  // in host memory, which few GPU threads read fastest. Null: not known.
  const int64_t* host_begin = nullptr;
  bool padded = false;  // gathers only: an id of -1 is no error and gives a row of zeros
  // The most blocks of a GPU's kernel that read rows outside host memory; 0: they fill the GPU.
  int64_t max_blocks = 0;

  /// Whether `id` is in 0 .. limit-1, or is padding where that is allowed.
  PG_HD bool admits(int64_t id, int64_t limit) const {
    return (id >= 0 && id < limit) || (padded && id == kPadding);
  }

  /// The row of the result that the i-th id's row is written to.
  PG_HD int64_t out_row(int64_t i) const { return out_index == nullptr ? i : out_index[i]; }

  /// The i-th id.
  PG_HD int64_t id(int64_t i) const {
    if (id_bytes == 4) return static_cast<const int32_t*>(ids)[i];
    if (id_bytes == 8) return static_cast<const int64_t*>(ids)[i];
    return first + i;
  }

  /// As id, for ids that another thread may change meanwhile. On the host.
  int64_t id_once(int64_t i) const {
    return id_bytes == 0 ? first + i : load_id_once(ids, id_bytes, i);
  }
};

/// The bitwise or of the row size and of the first row's address on every rank and tier: its lowest
/// set bit is the alignment that all rows have.
inline uint64_t alignment_bits(const TableView& table) {
  uint64_t bits = static_cast<uint64_t>(table.row_bytes) | reinterpret_cast<uintptr_t>(table.host);
  for (int r = 0; r < table.num_replicas; ++r)
    bits |= reinterpret_cast<uintptr_t>(table.replicas[r]);
  for (int s = 0; s < table.map.num_shards; ++s)
    bits |= reinterpret_cast<uintptr_t>(table.shards[s]);
  return bits;
}

/// Whether the memory has bytes of rows of the table.
bool overlaps(const TableView& table, const void* memory, int64_t num_bytes);

/// Whether the memory has bytes of the ids.
bool overlaps(const IdList& ids, const void* memory, int64_t num_bytes);

/// Raises IndexError naming the first id outside 0 .. limit-1. The ids are in host memory.
void check_ids(const IdList& ids, int64_t limit, int num_threads);

/// Returns the i-th id; raises IndexError unless it is in 0 .. limit-1 or padding. Ids that are
/// checked first are checked here again, since users may change them meanwhile.
int64_t checked_id(const IdList& ids, int64_t i, int64_t limit);

/// Returns the internal row of a checked id; raises IndexError if the table's order, which users
/// may have changed, names no row.
int64_t checked_row(const TableView& table, int64_t id);

/// Returns the row of the result for the i-th id; raises IndexError for a row outside the result.
int64_t checked_out_row(const IdList& ids, int64_t i);

/// out[ids.out_row(i)] = the row of ids.id(i). Checks the ids first. All memory must be accessible
/// from this CPU.
void gather_cpu(const TableView& table, const IdList& ids, char* out, int num_threads);

/// The row of ids.id(i) = values[i], in every replica. Checks the ids first. Rows of tiers and
/// shards without an address in `table` are skipped. For duplicate ids any of their values remains;
/// a wide row may contain parts of several.
void scatter_cpu(const TableView& table, const IdList& ids, const char* values, int num_threads);

#ifdef PEERGRAPH_CUDA
/// A gather: out[ids.out_row(i)] = the row of ids.id(i).
struct RowRead {
  const TableView* table = nullptr;
  IdList ids;
  char* out = nullptr;
};

/// As gather_cpu for each of several reads, on `device` in `stream`, with ids and results in memory
/// the device reaches. A few launches serve all. Ids out of range give rows of zeros and are
/// recorded in the device's error slot (error_slot.h). Rows of tiers without an address in their
/// table become zeros, too. `allocate` is called for several reads only.
void gather_cuda(const std::vector<RowRead>& reads, const Allocate& allocate, int device,
                 uintptr_t stream);

/// As scatter_cpu, on `device` in `stream`. Ids out of range are skipped and recorded, rows of
/// tiers without an address are skipped.
void scatter_cuda(const TableView& table, const IdList& ids, const char* values, int device,
                  uintptr_t stream);
#endif

}  // namespace peergraph
