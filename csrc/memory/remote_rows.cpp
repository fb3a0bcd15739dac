#include "memory/remote_rows.h"

#include <algorithm>
#include <vector>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kIdsPerPiece = 16 << 10;

struct Remote {
  uint64_t key;
  int64_t position;

  bool operator<(const Remote& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

/// Writes the local rows, and returns the remote ones.
std::vector<Remote> locate(const RemoteRowQuery& query, int64_t* local, int num_threads) {
  const int64_t pieces = pieces_of(query.ids.count, kIdsPerPiece, num_threads);
  std::vector<std::vector<Remote>> by_piece(pieces);
  parallel_pieces(pieces, num_threads, [&](int64_t piece) {
    const int64_t end = query.ids.count * (piece + 1) / pieces;
    for (int64_t i = query.ids.count * piece / pieces; i < end; ++i) {
      uint64_t key;
      local[i] = query.locate(checked_id(query.ids, i, query.split.rows), &key);
      if (local[i] < 0) by_piece[piece].push_back({key, i});
    }
  });
  for (int64_t piece = 1; piece < pieces; ++piece)
    by_piece[0].insert(by_piece[0].end(), by_piece[piece].begin(), by_piece[piece].end());
  return std::move(by_piece[0]);
}

}  // namespace

RemoteRowCounts find_remote_rows_cpu(const RemoteRowQuery& query, const RemoteRows& out,
                                     int num_threads) {
  check_ids(query.ids, query.split.rows, num_threads);
  std::vector<Remote> remote = locate(query, out.local, num_threads);
  std::sort(remote.begin(), remote.end());
  RemoteRowCounts counts;
  for (const Remote& row : remote) {
    if (counts.ids == 0 || row.key != remote[counts.ids - 1].key)
      out.keys[counts.rows++] = query.keys.restore(row.key);
    out.positions[counts.ids] = row.position;
    out.slots[counts.ids++] = counts.rows - 1;
  }
  return counts;
}

}  // namespace peergraph
