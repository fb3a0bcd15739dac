// Conversions of structures of mini-batches on the CPU, in one pass each: a structure is made for
// each batch.
#pragma once

#include <cstdint>

#include "aggregate/csr_matrix.h"

namespace peergraph {

/// The results of transpose_cpu, with ids as wide as the ids of the rows.
struct Transposed {
  void* indptr = nullptr;     // [num_columns + 1], as wide as rows.indptr
  void* indices = nullptr;    // [num_edges] rows, as wide as rows.indices
  void* positions = nullptr;  // [num_edges] positions in the rows, as wide as rows.indptr
};

/// Sorts the edges by column, the edges of a column in order of position.
/// Throws std::out_of_range with the first edge whose column is outside its range.
void transpose_cpu(const CsrMatrix& rows, const Transposed& out);

/// Writes the beginning of each key to indptr [num_keys + 1], as wide as the keys. Returns whether
/// the keys are sorted; otherwise the contents of indptr are undefined.
/// Throws std::out_of_range if a key is outside its range and the keys before it are sorted.
bool indptr_from_sorted(const void* keys, int id_bytes, int64_t count, int64_t num_keys,
                        void* indptr);

/// Returns whether the ids are 0, 1, 2, ...
bool is_arange(const void* ids, int id_bytes, int64_t count);

}  // namespace peergraph
