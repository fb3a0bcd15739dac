#include "memory/row_addresses.h"

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kAddressesPerPiece = 16 << 10;

}  // namespace

void row_addresses_cpu(const TableView& table, const IdList& ids, int64_t* out, int num_threads) {
  check_ids(ids, table.map.rows, num_threads);
  parallel_for(ids.count, kAddressesPerPiece, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = checked_row(table, checked_id(ids, i, table.map.rows));
      out[checked_out_row(ids, i)] = reinterpret_cast<int64_t>(table.row(row));
    }
  });
}

}  // namespace peergraph
