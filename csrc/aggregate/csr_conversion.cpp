// The transpose by a counting sort, and checks of ids, on the CPU.
#include "aggregate/csr_conversion.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/read_once.h"

namespace peergraph {
namespace {

[[noreturn]] void fail(const char* what, int64_t at, int64_t id, int64_t limit) {
  throw std::out_of_range("edge " + std::to_string(at) + ": " + what + " id " + std::to_string(id) +
                          " is out of range for " + std::to_string(limit) + " nodes");
}

/// A counting sort. Counts are stored one item later, so that the positions of the columns are the
/// offsets after every edge has advanced the position of its column.
template <typename Offset, typename Id>
void transpose(const CsrMatrix& rows, const Transposed& out) {
  const Id* columns = static_cast<const Id*>(rows.indices);
  Offset* offsets = static_cast<Offset*>(out.indptr);
  Offset* place = offsets + 1;
  Id* row_of = static_cast<Id*>(out.indices);
  Offset* positions = static_cast<Offset*>(out.positions);
  std::fill(offsets, offsets + rows.num_columns + 1, Offset{0});
  for (int64_t p = 0; p < rows.num_edges; ++p) {
    const Id column = read_once(columns + p);
    if (!is_below(column, rows.num_columns)) fail("source", p, column, rows.num_columns);
    ++place[column];
  }
  Offset sum = 0;
  for (int64_t c = 0; c < rows.num_columns; ++c) {
    const Offset degree = place[c];
    place[c] = sum;
    sum += degree;
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t end = rows.end(row);
    for (int64_t p = rows.begin(row); p < end; ++p) {
      // Columns and offsets may have been changed since they were counted.
      const Offset at = place[rows.column(p)]++;
      if (!is_below(at, rows.num_edges)) throw_changed("indices", p, at, rows.num_edges);
      row_of[at] = static_cast<Id>(row);
      positions[at] = static_cast<Offset>(p);
    }
  }
}

template <typename Id>
bool begins(const Id* keys, int64_t count, int64_t num_keys, Id* indptr) {
  Id last = -1;  // the beginnings of this key and of all keys before it are known
  for (int64_t i = 0; i < count; ++i) {
    const Id key = read_once(keys + i);
    if (key < last) return false;
    if (key < 0 || key >= num_keys) fail("destination", i, key, num_keys);
    while (last < key) indptr[++last] = static_cast<Id>(i);
  }
  std::fill(indptr + last + 1, indptr + num_keys + 1, static_cast<Id>(count));
  return true;
}

template <typename Id>
bool is_range(const Id* ids, int64_t count) {
  constexpr int64_t kPiece = 1024;  // compared without a branch
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t last = std::min(first + kPiece, count);
    Id differ = 0;
    for (int64_t i = first; i < last; ++i) differ |= ids[i] ^ static_cast<Id>(i);
    if (differ != 0) return false;
  }
  return true;
}

}  // namespace

void transpose_cpu(const CsrMatrix& rows, const Transposed& out) {
  const bool wide_offsets = rows.indptr_bytes == 8, wide_ids = rows.index_bytes == 8;
  if (wide_offsets)
    return wide_ids ? transpose<int64_t, int64_t>(rows, out)
                    : transpose<int64_t, int32_t>(rows, out);
  return wide_ids ? transpose<int32_t, int64_t>(rows, out) : transpose<int32_t, int32_t>(rows, out);
}

bool indptr_from_sorted(const void* keys, int id_bytes, int64_t count, int64_t num_keys,
                        void* indptr) {
  if (id_bytes == 4)
    return begins(static_cast<const int32_t*>(keys), count, num_keys,
                  static_cast<int32_t*>(indptr));
  return begins(static_cast<const int64_t*>(keys), count, num_keys, static_cast<int64_t*>(indptr));
}

bool is_arange(const void* ids, int id_bytes, int64_t count) {
  return id_bytes == 4 ? is_range(static_cast<const int32_t*>(ids), count)
                       : is_range(static_cast<const int64_t*>(ids), count);
}

}  // namespace peergraph
