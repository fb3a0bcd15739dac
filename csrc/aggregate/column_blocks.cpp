#include "aggregate/column_blocks.h"

#include <algorithm>

#include "common/partition_point.h"

namespace peergraph {

void each_piece(const CsrMatrix& rows, int64_t columns, int num_threads,
                FunctionRef<int64_t, int64_t> body) {
  constexpr int64_t kValuesPerThread = 1 << 15;
  // Several pieces for each thread, since rows with equally many edges may differ in time.
  constexpr int64_t kPiecesPerThread = 8;
  const int64_t work = rows.num_rows + rows.num_edges;
  const int64_t grain = std::max<int64_t>(1, kValuesPerThread / std::max<int64_t>(1, columns));
  const int64_t threads = pieces_of(work, grain, num_threads);
  const int64_t pieces = threads == 1 ? 1 : threads * kPiecesPerThread;
  // The first row at which all rows before it make up that share of the work.
  const auto cut = [&](int64_t piece) {
    const int64_t share = static_cast<int64_t>(static_cast<double>(work) / pieces * piece);
    if (piece == 0 || piece == pieces) return piece == 0 ? int64_t{0} : rows.num_rows;
    return partition_point(int64_t{0}, rows.num_rows,
                           [&](int64_t row) { return row + rows.begin(row) < share; });
  };
  const auto visit = [&](int64_t piece) {
    const int64_t first = cut(piece), last = cut(piece + 1);
    if (first < last) body(first, last);
  };
  parallel_pieces(pieces, static_cast<int>(threads), visit, torch_team());
}

}  // namespace peergraph
