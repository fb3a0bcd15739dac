#include "common/cuda_check.cuh"
#include "memory/error_slot.h"
#include "memory/row_addresses.h"

namespace peergraph {
namespace {

__global__ void __launch_bounds__(kBlockThreads)
    find_rows(const __grid_constant__ TableView table, const __grid_constant__ IdList ids,
              int64_t* out, ErrorSlot errors) {
  for (int64_t i = global_thread(); i < ids.count; i += grid_threads()) {
    const int64_t id = ids.id(i);
    const bool known = id >= 0 && id < table.map.rows;
    if (!known) record_bad_id(errors, ids.out_row(i), id, table.map.rows);
    out[ids.out_row(i)] = known ? reinterpret_cast<int64_t>(table.find(id)) : 0;
  }
}

}  // namespace

void row_addresses_cuda(const TableView& table, const IdList& ids, int64_t* out, int device,
                        uintptr_t stream) {
  raise_pending(device);
  if (ids.count == 0) return;
  DeviceGuard guard(device);
  find_rows<<<grid_for(ids.count), kBlockThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
      table, ids, out, error_slot(device));
  PG_LAUNCH_CHECK("find_rows");
}

}  // namespace peergraph
