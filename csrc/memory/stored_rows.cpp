#include "memory/stored_rows.h"

#include <optional>

#include "common/on_device.h"
#include "memory/decode_gather.h"

namespace peergraph {

void gather_stored(const Leased<TableView>& leased, const RowCodec* joined,
                   const Leased<TableView>* leased_scales, const IdList& ids, char* out,
                   const Launch& launch) {
  const Opened table(leased);
  if (joined == nullptr) {
    PG_ON_DEVICE(launch.device, gather_cpu(*table, ids, out, launch.num_threads),
                 gather_cuda(*table, ids, out, launch.device, launch.stream));
    return;
  }
  std::optional<Opened<TableView>> opened_scales;
  RowCodec codec = *joined;
  const TableView* scales = nullptr;
  if (leased_scales != nullptr) {
    scales = &*opened_scales.emplace(*leased_scales);
    codec = joined->apart();
    PG_CHECK_ARG(codec.num_scales() > 0 && scales->row_bytes == 4 * codec.num_scales() &&
                     scales->map.rows == table->map.rows,
                 "scales must have the codec's scales of each row of the table");
  }
  PG_CHECK_ARG((scales ? codec.columns : codec.used_bytes()) <= table->row_bytes,
               "the codec's rows must fit the rows of the table");
  PG_ON_DEVICE(launch.device,
               decode_gather_cpu(*table, scales, codec, ids, out, launch.num_threads),
               decode_gather_cuda(*table, scales, codec, ids, out, launch.device, launch.stream));
}

}  // namespace peergraph
