#include "memory/stored_rows.h"

#include <deque>
#include <optional>

#include "common/check.h"
#include "common/on_device.h"
#include "memory/decode_gather.h"

namespace peergraph {
namespace {

/// A read of tables that are open.
struct OpenedRead {
  const TableView* table;
  const TableView* scales;
  std::optional<RowCodec> codec;
  const StoredRead& read;
};

/// Opens the tables of a read, which stay open as long as `opened` lives.
OpenedRead open(const StoredRead& read, std::deque<Opened<TableView>>& opened) {
  OpenedRead result{&*opened.emplace_back(*read.table), nullptr, {}, read};
  if (read.codec == nullptr) return result;
  const TableView& table = *result.table;
  RowCodec codec = *read.codec;
  if (read.scales != nullptr) {
    result.scales = &*opened.emplace_back(*read.scales);
    codec = codec.apart();
    PG_CHECK_ARG(codec.num_scales() > 0 && result.scales->row_bytes == 4 * codec.num_scales() &&
                     result.scales->map.rows == table.map.rows,
                 "scales must have the codec's scales of each row of the table");
  }
  PG_CHECK_ARG((result.scales ? codec.columns : codec.used_bytes()) <= table.row_bytes,
               "the codec's rows must fit the rows of the table");
  result.codec = codec;
  return result;
}

void gather_all_cpu(const std::vector<OpenedRead>& reads, int num_threads) {
  for (const OpenedRead& of : reads) {
    const IdList& ids = of.read.ids;
    if (of.codec)
      decode_gather_cpu(*of.table, of.scales, *of.codec, ids, of.read.out, num_threads);
    else
      gather_cpu(*of.table, ids, of.read.out, num_threads);
  }
}

#ifdef PEERGRAPH_CUDA
void gather_all_cuda(const std::vector<OpenedRead>& reads, const Allocate& allocate,
                     const Launch& launch) {
  std::vector<RowRead> plain;
  std::vector<DecodeRead> encoded;
  for (const OpenedRead& of : reads) {
    if (of.codec)
      encoded.push_back({of.table, of.scales, *of.codec, of.read.ids, of.read.out});
    else
      plain.push_back({of.table, of.read.ids, of.read.out});
  }
  if (!plain.empty()) gather_cuda(plain, allocate, launch.device, launch.stream);
  if (!encoded.empty()) decode_gather_cuda(encoded, allocate, launch.device, launch.stream);
}
#endif

}  // namespace

void gather_stored(const std::vector<StoredRead>& reads, [[maybe_unused]] const Allocate& allocate,
                   const Launch& launch) {
  std::deque<Opened<TableView>> opened;
  std::vector<OpenedRead> open_reads;
  for (const StoredRead& read : reads) open_reads.push_back(open(read, opened));
  PG_ON_DEVICE(launch.device, gather_all_cpu(open_reads, launch.num_threads),
               gather_all_cuda(open_reads, allocate, launch));
}

}  // namespace peergraph
