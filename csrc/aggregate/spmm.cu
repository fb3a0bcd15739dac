// g-SpMM on a GPU, of rows in the operation's elements.
#include "aggregate/padded_rows.cuh"
#include "aggregate/spmm_narrow.cuh"
#include "aggregate/spmm_rows.cuh"

namespace peergraph {
namespace {

template <MessageKind kKind, typename T, int kVec, int kItems>
void launch_for_layout(const RowWork& work, const Operands& operands,
                       const LaneLaunch<kVec, kItems>& shape, const SpmmOutput<T>& output,
                       cudaStream_t stream) {
  operands.x_rows == nullptr
      ? launch_rows<kKind, RowLayout::kDense, T>(work, operands, shape, output, stream)
      : launch_rows<kKind, RowLayout::kIndirect, T>(work, operands, shape, output, stream);
}

template <typename T, int kVec, int kItems>
void launch_for_kind(const RowWork& work, const Operands& operands,
                     const LaneLaunch<kVec, kItems>& shape, const SpmmOutput<T>& output,
                     cudaStream_t stream) {
  if (operands.message == Message::kCopyU) {
    launch_for_layout<MessageKind::kCopyU, T>(work, operands, shape, output, stream);
  } else if (operands.message == Message::kMul && shape.shape.edge_values == EdgeValues::kOne) {
    launch_for_layout<MessageKind::kScale, T>(work, operands, shape, output, stream);
  } else if (operands.message == Message::kMul) {
    launch_for_layout<MessageKind::kMul, T>(work, operands, shape, output, stream);
  } else {
    PG_CHECK_ARG(operands.x_rows == nullptr, "rows at addresses are copied or scaled only");
    launch_rows<MessageKind::kGeneric, RowLayout::kDense, T>(work, operands, shape, output, stream);
  }
}

template <typename T, int kVec, int kItems>
void launch_spmm(const Spmm& op, const Operands& operands, const LaneLaunch<kVec, kItems>& shape,
                 const Allocate& allocate, cudaStream_t stream) {
  const RowWork work = make_row_work(op.matrix, allocate, stream);
  const SpmmOutput<T> output = make_spmm_output<T, kVec>(op, allocate);
  launch_for_kind<T>(work, operands, shape, output, stream);
}

}  // namespace

void spmm_cuda(const Spmm& op, const Launch& launch, const Allocate& allocate) {
  check_out_dtype(op.dtype, op.out_dtype);
  if (op.matrix.num_rows == 0 || op.operands.columns == 0) return;
  check_columns(op.matrix);
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  if (op.operands.is_narrow()) return spmm_narrow_rows(op, allocate, stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVec = 16 / sizeof(T);
    // Vectors of the output may be narrower, and are written by value where they are not aligned.
    if (can_use_vectors<T>(op.operands, nullptr)) {
      launch_spmm<T>(op, op.operands, lane_launch<kVec, 1>(op.operands), allocate, stream);
    } else if (pays_to_pad<T>(op.matrix, op.operands)) {
      const Operands padded = pad_rows<T>(op.matrix, op.operands, allocate, stream);
      launch_spmm<T>(op, padded, lane_launch<kVec, 1>(padded), allocate, stream);
    } else {
      const auto shape = lane_launch<1, kNarrowItems>(op.operands);
      launch_spmm<T>(op, op.operands, shape, allocate, stream);
    }
  });
}

}  // namespace peergraph
