// Structures of mini-batches on the CPU, in one pass each: they are made as often as they are used.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"

namespace peergraph {

/// Where the results of transpose_cpu go, in ids as wide as those of the rows.
struct Transposed {
  void* indptr = nullptr;     // [num_columns + 1], as wide as rows.indptr
  void* indices = nullptr;    // [num_edges] rows, as wide as rows.indices
  void* positions = nullptr;  // [num_edges] positions in the rows, as wide as rows.indptr
};

/// The edges by column, those of a column in order of position.
/// Throws std::out_of_range with the first edge whose column is outside its range.
void transpose_cpu(const CsrMatrix& rows, const Transposed& out);

/// indptr [num_keys + 1], as wide as the keys: where each key begins, if they are sorted; else what
/// is written means nothing. Returns whether they are.
/// Throws std::out_of_range where a key is outside its range and those before are sorted.
bool indptr_from_sorted(const void* keys, int id_bytes, int64_t count, int64_t num_keys,
                        void* indptr);

/// Whether the ids are 0, 1, 2, ...
bool is_arange(const void* ids, int id_bytes, int64_t count);

}  // namespace peergraph
