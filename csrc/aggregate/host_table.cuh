// Writes small tables of the host to a GPU, so that a CUDA graph writes the same values at each
// replay.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

/// A piece of a table, passed as an argument of a kernel: a CUDA graph keeps the values of
/// arguments, but would read host memory again.
struct TablePiece {
  static constexpr int64_t kBytes = 3072;
  char bytes[kBytes];
};

__global__ void write_table_piece(const TablePiece piece, char* table, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) table[i] = piece.bytes[i];
}

/// Arrays of the host, one behind the other. Items have 8 bytes, or a multiple of them.
class HostTable {
 public:
  /// Returns the place of the array, in bytes.
  template <typename T>
  size_t add(const std::vector<T>& values) {
    static_assert(sizeof(T) % 8 == 0);
    const auto* const bytes = reinterpret_cast<const char*>(values.data());
    const size_t place = content_.size();
    content_.insert(content_.end(), bytes, bytes + values.size() * sizeof(T));
    return place;
  }

  int64_t num_bytes() const { return static_cast<int64_t>(content_.size()); }

  void write(char* table, cudaStream_t stream) const {
    for (int64_t first = 0; first < num_bytes(); first += TablePiece::kBytes) {
      TablePiece piece;
      const int64_t bytes = std::min(TablePiece::kBytes, num_bytes() - first);
      std::copy_n(content_.data() + first, bytes, piece.bytes);
      write_table_piece<<<1, kBlockThreads, 0, stream>>>(piece, table + first, bytes);
      PG_LAUNCH_CHECK("write_table_piece");
    }
  }

 private:
  std::vector<char> content_;
};

}  // namespace
}  // namespace peergraph
