// Gathering and scattering rows of a table, whatever tiers they lie on (WholeGraph III-C3).
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "memory/table_view.h"

namespace peergraph {

constexpr int64_t kPadding = -1;

/// The users' ids an op works on: a list of int32 or int64, or the range first, first + 1, ...
struct IdList {
  const void* ids = nullptr;
  int32_t id_bytes = 0;  // 4 or 8; 0: the range
  int64_t first = 0;
  int64_t count = 0;
  // Gathers only: row i of the result is row place(i). Null: the order of the ids.
  const int64_t* places = nullptr;
  // With places only: the ids from *far on, in the order of their rows, are of rows on the host,
  // which few threads of the GPU read best. Null: nothing is known.
  const int64_t* far = nullptr;
  bool padded = false;     // gathers only: an id of -1 is no error and gives a row of zeros
  int64_t max_blocks = 0;  // of a GPU's kernel, for rows that are not `far`; 0: what fills the GPU

  /// Whether `id` names a row, or is allowed not to.
  PG_HD bool admits(int64_t id, int64_t limit) const {
    return (id >= 0 && id < limit) || (padded && id == kPadding);
  }

  PG_HD int64_t place(int64_t i) const { return places == nullptr ? i : places[i]; }

  PG_HD int64_t at(int64_t i) const {
    if (id_bytes == 4) return static_cast<const int32_t*>(ids)[i];
    if (id_bytes == 8) return static_cast<const int64_t*>(ids)[i];
    return first + i;
  }
};

/// Bits that are set in the address of some row of the table or in the row size.
inline uint64_t alignment_bits(const TableView& table) {
  uint64_t bits = static_cast<uint64_t>(table.row_bytes) | reinterpret_cast<uintptr_t>(table.host);
  for (int r = 0; r < table.num_replicas; ++r)
    bits |= reinterpret_cast<uintptr_t>(table.replicas[r]);
  for (int s = 0; s < table.map.num_shards; ++s)
    bits |= reinterpret_cast<uintptr_t>(table.shards[s]);
  return bits;
}

/// Raises IndexError naming the first id outside 0 .. limit-1. The ids are in host memory.
void check_ids(const IdList& ids, int64_t limit, int num_threads);

/// out[place(i)] = row ids[i]. Checks the ids first. All memory is reachable by this CPU.
void gather_cpu(const TableView& table, const IdList& ids, char* out, int num_threads);

/// Row ids[i] = values[i], in every replica. Checks the ids first. Of duplicate ids, any one's
/// value remains, and wide rows may mix them.
void scatter_cpu(const TableView& table, const IdList& ids, const char* values, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As gather_cpu, on `device` in `stream`, with ids and out in memory the device reaches. Ids out
/// of range give rows of zeros and are recorded in the device's error slot (error_slot.h). Rows of
/// tiers without an address in `table` become zeros, too.
void gather_cuda(const TableView& table, const IdList& ids, char* out, int device,
                 uintptr_t stream);

/// As scatter_cpu, on `device` in `stream`. Ids out of range are skipped and recorded, rows of
/// tiers without an address are skipped.
void scatter_cuda(const TableView& table, const IdList& ids, const char* values, int device,
                  uintptr_t stream);
#endif

}  // namespace peergraph
