// g-SpMM of narrow rows on a GPU: values are widened in registers, as they arrive.
#include "aggregate/spmm_narrow.cuh"
#include "aggregate/spmm_rows.cuh"

namespace peergraph {
namespace {

template <RowLayout kLayout, typename T, int kVec, int kItems>
void launch_spmm(const Spmm& op, const LaneLaunch<kVec, kItems>& shape, const Allocate& allocate,
                 cudaStream_t stream) {
  const RowWork work = make_row_work(op.matrix, allocate, stream);
  const SpmmOutput<T> output = make_spmm_output<T, kVec>(op, allocate);
  const auto launch = [&](auto kind) {
    launch_rows<decltype(kind)::value, kLayout, T>(work, op.operands, shape, output, stream);
  };
  if (op.operands.message == Message::kCopyU) {
    launch(std::integral_constant<MessageKind, MessageKind::kCopyU>{});
  } else if (shape.shape.edge_values == EdgeValues::kOne) {
    launch(std::integral_constant<MessageKind, MessageKind::kScale>{});
  } else {
    launch(std::integral_constant<MessageKind, MessageKind::kMul>{});
  }
}

}  // namespace

void spmm_narrow_rows(const Spmm& op, const Allocate& allocate, cudaStream_t stream) {
  const Message message = op.operands.message;
  PG_CHECK_ARG(message == Message::kCopyU || message == Message::kMul,
               "rows at addresses are copied or scaled only");
  with_narrow_lanes(op.dtype, op.operands, [&](auto layout, auto element, auto shape) {
    launch_spmm<decltype(layout)::value, decltype(element)>(op, shape, allocate, stream);
  });
}

}  // namespace peergraph
