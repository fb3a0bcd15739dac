#include "memory/staging.h"

#include <algorithm>

#include "common/check.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

// The bytes of a piece: so many that starting its copy costs little, so few that the first copy
// begins soon.
constexpr int64_t kStagedBytes = 512 << 10;

IdList slice(const IdList& ids, int64_t begin, int64_t count) {
  IdList part = ids;
  part.ids = static_cast<const char*>(ids.ids) + begin * ids.id_bytes;
  part.first = ids.first + begin;
  part.count = count;
  return part;
}

}  // namespace

void stage_rows(const TableView& table, const IdList& ids, char* buffer, int num_threads,
                const CopyPiece& copy) {
  PG_CHECK_ARG(ids.out_index == nullptr, "staged rows must be in the order of the ids");
  const int64_t row_bytes = table.row_bytes;
  if (row_bytes == 0) return;
  const int64_t piece_rows = std::max<int64_t>(1, kStagedBytes / row_bytes);
  const int64_t pieces = (ids.count + piece_rows - 1) / piece_rows;
  parallel_pieces(pieces, num_threads, [&](int64_t p) {
    const int64_t begin = p * piece_rows;
    const int64_t count = std::min(piece_rows, ids.count - begin);
    gather_cpu(table, slice(ids, begin, count), buffer + begin * row_bytes, 1);
    copy(begin * row_bytes, count * row_bytes);
  });
}

}  // namespace peergraph
