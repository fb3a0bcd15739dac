// Sums over local and remote neighbours on the CPU: one matrix after the other.
#include "aggregate/interleaved_spmm.h"

#include <algorithm>

#include "aggregate/spmm.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kRowsOfPiece = 1024;

template <typename T>
void divide_by_degrees(const InterleavedSpmm& op, int num_threads) {
  const int64_t rows = op.local.num_rows, columns = op.local_operands.columns;
  const auto divide = [&](int64_t piece) {
    const int64_t last = std::min((piece + 1) * kRowsOfPiece, rows);
    for (int64_t row = piece * kRowsOfPiece; row < last; ++row) {
      const int64_t degree =
          op.local.end(row) - op.local.begin(row) + op.remote.end(row) - op.remote.begin(row);
      T* out = static_cast<T*>(op.out) + row * columns;
      for (int64_t c = 0; c < columns && degree > 0; ++c) out[c] /= static_cast<T>(degree);
    }
  };
  parallel_pieces((rows + kRowsOfPiece - 1) / kRowsOfPiece, num_threads, divide, torch_team());
}

}  // namespace

void interleaved_spmm_cpu(const InterleavedSpmm& op, int num_threads) {
  PG_CHECK_ARG(op.dtype == DType::kFloat32 || op.dtype == DType::kFloat64,
               "local and remote edges are summed in float32 and float64");
  spmm_cpu({op.local, op.local_operands, op.dtype, false, false, op.out, op.dtype}, num_threads);
  spmm_cpu({op.remote, op.remote_operands, op.dtype, false, true, op.out, op.dtype}, num_threads);
  if (!op.mean) return;
  if (op.dtype == DType::kFloat32) return divide_by_degrees<float>(op, num_threads);
  divide_by_degrees<double>(op, num_threads);
}

}  // namespace peergraph
