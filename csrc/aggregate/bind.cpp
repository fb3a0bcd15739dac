// Python bindings of the aggregate area. The callers have checked that tensors are dense and that
// shapes agree.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "aggregate/attention.h"
#include "aggregate/csr_conversion.h"
#include "aggregate/edge_softmax.h"
#include "aggregate/interleaved_spmm.h"
#include "aggregate/sddmm.h"
#include "aggregate/spmm.h"
#include "aggregate/spmm_minmax.h"
#include "aggregate/spmm_transposed.h"
#include "common/check.h"
#include "common/on_device.h"
#include "common/vectors.h"
#include "memory/lease.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using LeasedOperands = Leased<Operands>;
using OptionalTensor = std::optional<TensorRef>;

Schedule make_schedule(int64_t chunk, int64_t long_row, int32_t warps_per_block) {
  PG_CHECK_ARG(chunk > 0, "chunk must be positive");
  PG_CHECK_ARG(long_row > 0, "long_row must be positive");
  PG_CHECK_ARG(warps_per_block > 0 && warps_per_block <= kMaxWarpsPerBlock,
               "warps_per_block must be 1.." + std::to_string(kMaxWarpsPerBlock));
  return {chunk, long_row, warps_per_block, 0};
}

CsrMatrix make_csr_matrix(const TensorRef& indptr, const TensorRef& indices,
                          const OptionalTensor& edge_ids, int64_t num_columns, int64_t max_chunks,
                          const Schedule& schedule) {
  PG_CHECK_ARG(num_columns >= 0 && max_chunks >= 0, "sizes must not be negative");
  PG_CHECK_ARG(indptr.num_elements() > 0, "indptr must have an item more than there are rows");
  CsrMatrix matrix;
  matrix.indptr = indptr.data;
  matrix.indices = indices.data;
  matrix.edge_ids = pointer(edge_ids);
  matrix.indptr_bytes = indptr.id_bytes("indptr");
  matrix.index_bytes = indices.id_bytes("indices");
  matrix.edge_id_bytes = edge_ids ? edge_ids->id_bytes("edge_ids") : 0;
  matrix.num_rows = indptr.num_elements() - 1;
  matrix.num_columns = num_columns;
  matrix.num_edges = indices.num_elements();
  matrix.schedule = schedule;
  matrix.schedule.max_chunks = max_chunks;
  return matrix;
}

Operands checked(const Operands& operands) {
  PG_CHECK_ARG(operands.e_columns > 0 && operands.columns % operands.e_columns == 0,
               "e_columns must divide columns");
  return operands;
}

LeasedOperands make_operands(Message message, const OptionalTensor& x, const OptionalTensor& e,
                             int64_t columns, int64_t e_columns) {
  return {checked({message, pointer(x), pointer(e), columns, e_columns, nullptr}), {}};
}

/// `codec` describes narrow rows, and `scale_addresses` are where their scales are, if apart;
/// `leases` are the leases of the tables that the addresses point into.
LeasedOperands make_indirect_operands(Message message, const TensorRef& addresses,
                                      uintptr_t address_bits, const OptionalTensor& e,
                                      int64_t columns, int64_t e_columns, const Leases& leases,
                                      const std::optional<RowCodec>& codec,
                                      const OptionalTensor& scale_addresses) {
  const auto* rows = pointer<const int64_t>(addresses);
  Operands operands =
      checked({message, pointer(address_bits), pointer(e), columns, e_columns, rows});
  if (codec) {
    PG_CHECK_ARG(codec->columns == columns, "the codec must have the columns of the operation");
    operands.codec = *codec;
  }
  if (scale_addresses) {
    PG_CHECK_ARG(codec && codec->num_scales() > 0, "scale_addresses are for a codec with scales");
    operands.codec = codec->apart();
    operands.scale_rows = pointer<const int64_t>(*scale_addresses);
  }
  return {operands, leases};
}

/// Raises unless narrow rows are widened to the dtype of the operation.
void check_codec(const Operands& operands, DType dtype) {
  PG_CHECK_ARG(!operands.is_narrow() || operands.codec.dtype == dtype,
               "the operation must have the codec's dtype");
}

/// `out` [rows, at least the columns of the operands]: the sums are written from `first_column` on.
/// `dtype` is that of the operands; None: that of `out`.
void bind_spmm(const CsrMatrix& matrix, const LeasedOperands& operands, bool mean, bool accumulate,
               const TensorRef& out, const Launch& launch,
               [[maybe_unused]] const py::function& allocate, std::optional<DType> dtype,
               int64_t first_column) {
  const Opened opened(operands);
  const int64_t stride = out.size(1);
  PG_CHECK_ARG(first_column >= 0 && first_column + opened->columns <= stride,
               "out has too few columns");
  Spmm op{matrix, *opened, dtype.value_or(out.dtype("out")), mean, accumulate};
  check_codec(*opened, op.dtype);
  op.out = static_cast<char*>(out.data) + first_column * out.item_bytes;
  op.out_dtype = out.dtype("out");
  op.out_stride = stride;
  PG_ON_DEVICE(launch.device, spmm_cpu(op, launch.num_threads),
               spmm_cuda(op, launch, with_gil(allocate)));
}

Interleaving make_interleaving(int32_t partition, int32_t distance, int32_t warps_per_block) {
  PG_CHECK_ARG(partition > 0, "partition must be positive");
  PG_CHECK_ARG(distance > 0 && distance <= kMaxDistance,
               "distance must be 1.." + std::to_string(kMaxDistance));
  PG_CHECK_ARG(warps_per_block > 0 && warps_per_block <= kMaxInterleavedWarps,
               "warps_per_block must be 1.." + std::to_string(kMaxInterleavedWarps));
  return {partition, distance, warps_per_block};
}

void bind_interleaved_spmm(const CsrMatrix& local, const LeasedOperands& local_operands,
                           const CsrMatrix& remote, const LeasedOperands& remote_operands,
                           bool mean, const Interleaving& interleaving, const TensorRef& out,
                           const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const Opened own(local_operands);
  const Opened others(remote_operands);
  PG_CHECK_ARG(local.num_rows == remote.num_rows && own->columns == others->columns,
               "local and remote edges must have the same rows and columns");
  const InterleavedSpmm op{local, remote,       *own,    *others, out.dtype("out"),
                           mean,  interleaving, out.data};
  PG_ON_DEVICE(launch.device, interleaved_spmm_cpu(op, launch.num_threads),
               interleaved_spmm_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_transposed(const CsrMatrix& matrix, const LeasedOperands& operands, DType dtype,
                          const OptionalTensor& counts, const TensorRef& out, const Launch& launch,
                          [[maybe_unused]] const py::function& allocate) {
  const Opened opened(operands);
  const SpmmTransposed op{matrix, *opened, dtype, pointer<const int32_t>(counts), out.data};
  PG_ON_DEVICE(launch.device, spmm_transposed_cpu(op, launch.num_threads),
               spmm_transposed_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_minmax(const CsrMatrix& matrix, const LeasedOperands& operands, bool minimum,
                      const TensorRef& out, const TensorRef& arg, const Launch& launch,
                      [[maybe_unused]] const py::function& allocate) {
  const Opened opened(operands);
  check_codec(*opened, out.dtype("out"));
  const SpmmMinMax op{matrix,   *opened,  out.dtype("out"),   minimum,
                      out.data, arg.data, arg.id_bytes("arg")};
  PG_ON_DEVICE(launch.device, spmm_minmax_cpu(op, launch.num_threads),
               spmm_minmax_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_minmax_backward(const CsrMatrix& matrix, const LeasedOperands& operands,
                               const TensorRef& arg, const TensorRef& grad,
                               const OptionalTensor& grad_x, const OptionalTensor& grad_e,
                               [[maybe_unused]] const std::optional<CsrMatrix>& transpose,
                               const Launch& launch) {
  const Opened opened(operands);
  const SpmmMinMaxBackward op{
      matrix,    *opened,         grad.dtype("grad"), arg.data, arg.id_bytes("arg"),
      grad.data, pointer(grad_x), pointer(grad_e)};
  PG_ON_DEVICE(launch.device, spmm_minmax_backward_cpu(op, launch.num_threads),
               spmm_minmax_backward_cuda(op, transpose ? &*transpose : nullptr, launch));
}

EdgeOperand make_edge_operand(const OptionalTensor& tensor, Target target) {
  return {pointer(tensor), target, tensor ? tensor->size(1) : 0};
}

void bind_sddmm(const CsrMatrix& matrix, const OptionalTensor& left, Target left_target,
                const OptionalTensor& right, Target right_target, Message message, int64_t depth,
                const TensorRef& out, const Launch& launch) {
  const Sddmm op{matrix,
                 make_edge_operand(left, left_target),
                 make_edge_operand(right, right_target),
                 message,
                 out.dtype("out"),
                 out.size(1),
                 depth,
                 out.data};
  PG_ON_DEVICE(launch.device, sddmm_cpu(op, launch.num_threads), sddmm_cuda(op, launch));
}

void bind_edge_softmax(const CsrMatrix& matrix, const TensorRef& values, const OptionalTensor& grad,
                       const TensorRef& out, const Launch& launch,
                       [[maybe_unused]] const py::function& allocate) {
  const EdgeSoftmax op{matrix, out.dtype("out"), out.size(1), values.data, pointer(grad), out.data};
  PG_ON_DEVICE(launch.device, edge_softmax_cpu(op, launch.num_threads),
               edge_softmax_cuda(op, launch, with_gil(allocate)));
}

Attention make_attention(const CsrMatrix& matrix, const TensorRef& x, const OptionalTensor& left,
                         const OptionalTensor& right, const OptionalTensor& att, int64_t loops,
                         double slope) {
  return {matrix, x.dtype("x"), att.has_value(), x.size(1),      x.size(2),   loops,
          slope,  x.data,       pointer(left),   pointer(right), pointer(att)};
}

void bind_attention(const Attention& inputs, const TensorRef& out, const TensorRef& lse,
                    const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const AttentionForward op{inputs, out.data, lse.data};
  PG_ON_DEVICE(launch.device, attention_cpu(op, launch.num_threads),
               attention_cuda(op, launch, with_gil(allocate)));
}

/// Gradients without elements are not computed.
void bind_attention_backward(const Attention& inputs, const TensorRef& grad, const TensorRef& lse,
                             const TensorRef& delta, const TensorRef& grad_x,
                             const TensorRef& grad_left, const TensorRef& grad_right,
                             const TensorRef& grad_att, const std::optional<CsrMatrix>& transpose,
                             const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const AttentionBackward op{inputs,
                             grad.data,
                             lse.data,
                             delta.data,
                             grad_x.data_if_any(),
                             grad_left.data_if_any(),
                             grad_right.data_if_any(),
                             grad_att.data_if_any()};
  if (transpose) {
    PG_ON_DEVICE(launch.device, attention_backward_columns_cpu(op, *transpose, launch.num_threads),
                 attention_backward_columns_cuda(op, *transpose, launch, with_gil(allocate)));
  } else {
    PG_ON_DEVICE(launch.device, attention_backward_rows_cpu(op, launch.num_threads),
                 attention_backward_rows_cuda(op, launch, with_gil(allocate)));
  }
}

void bind_transpose(const CsrMatrix& matrix, const TensorRef& indptr, const TensorRef& indices,
                    const TensorRef& positions) {
  transpose_cpu(matrix, {indptr.data, indices.data, positions.data});
}

bool bind_indptr_from_sorted(const TensorRef& keys, int64_t num_keys, const TensorRef& indptr) {
  return indptr_from_sorted(keys.data, keys.id_bytes("keys"), keys.num_elements(), num_keys,
                            indptr.data);
}

bool bind_is_arange(const TensorRef& ids) {
  return is_arange(ids.data, ids.id_bytes("ids"), ids.num_elements());
}

/// Whether attention() takes heads of these sizes.
bool attention_fits(DType dtype, int64_t heads, int64_t depth, int device) {
#ifdef PEERGRAPH_CUDA
  if (device >= 0) return attention_fits_cuda(dtype, heads, depth);
#endif
  return device < 0 && dtype >= DType::kFloat32 && heads > 0 && depth > 0;
}

/// Bounds the bytes of the vectors that functions on the CPU use from now on, as far as the CPU has
/// such vectors; results do not depend on them. Returns the bound that this one replaces.
int limit_vector_bytes(int bytes) {
  PG_CHECK_ARG(bytes == 16 || bytes == 32 || bytes == 64, "bytes must be 16, 32 or 64");
  return vector_bytes_limit().exchange(bytes);
}

void register_types(py::module_& m) {
  py::enum_<Message>(m, "Message")
      .value("copy_u", Message::kCopyU)
      .value("copy_e", Message::kCopyE)
      .value("add", Message::kAdd)
      .value("sub", Message::kSub)
      .value("mul", Message::kMul)
      .value("div", Message::kDiv);
  py::enum_<Target>(m, "Target")
      .value("u", Target::kColumn)
      .value("v", Target::kRow)
      .value("e", Target::kEdge);
  const Schedule defaults;
  py::class_<Schedule>(m, "Schedule")
      .def(py::init(&make_schedule), py::kw_only(), py::arg("chunk") = defaults.chunk,
           py::arg("long_row") = defaults.long_row,
           py::arg("warps_per_block") = defaults.warps_per_block)
      .def_readonly("chunk", &Schedule::chunk)
      .def_readonly("long_row", &Schedule::long_row)
      .def_readonly("warps_per_block", &Schedule::warps_per_block);
  const Interleaving usual;
  py::class_<Interleaving>(m, "Interleaving")
      .def(py::init(&make_interleaving), py::kw_only(), py::arg("partition") = usual.partition,
           py::arg("distance") = usual.distance, py::arg("warps_per_block") = usual.warps_per_block)
      .def_readonly("partition", &Interleaving::partition)
      .def_readonly("distance", &Interleaving::distance)
      .def_readonly("warps_per_block", &Interleaving::warps_per_block);
  py::class_<CsrMatrix>(m, "CsrMatrix")
      .def(py::init(&make_csr_matrix), py::kw_only(), py::arg("indptr"), py::arg("indices"),
           py::arg("edge_ids"), py::arg("num_columns"), py::arg("max_chunks"), py::arg("schedule"));
  py::class_<LeasedOperands>(m, "Operands")
      .def(py::init(&make_operands), py::kw_only(), py::arg("message"), py::arg("x"), py::arg("e"),
           py::arg("columns"), py::arg("e_columns"))
      .def(py::init(&make_indirect_operands), py::kw_only(), py::arg("message"),
           py::arg("addresses"), py::arg("address_bits"), py::arg("e"), py::arg("columns"),
           py::arg("e_columns"), py::arg("leases"), py::arg("codec") = py::none(),
           py::arg("scale_addresses") = py::none());
  py::class_<Attention>(m, "Attention")
      .def(py::init(&make_attention), py::kw_only(), py::arg("matrix"), py::arg("x"),
           py::arg("left"), py::arg("right"), py::arg("att"), py::arg("loops"), py::arg("slope"));
}

}  // namespace

void register_aggregate(py::module_& m) {
  register_types(m);
  m.def("spmm", &bind_spmm, py::arg("matrix"), py::arg("operands"), py::kw_only(), py::arg("mean"),
        py::arg("accumulate"), py::arg("out"), py::arg("launch"), py::arg("allocate"),
        py::arg("dtype") = py::none(), py::arg("first_column") = 0, ReleaseGil());
  m.def("interleaved_spmm", &bind_interleaved_spmm, py::arg("local"), py::arg("local_operands"),
        py::arg("remote"), py::arg("remote_operands"), py::kw_only(), py::arg("mean"),
        py::arg("interleaving"), py::arg("out"), py::arg("launch"), py::arg("allocate"),
        ReleaseGil());
  m.def("spmm_transposed", &bind_spmm_transposed, py::arg("matrix"), py::arg("operands"),
        py::kw_only(), py::arg("dtype"), py::arg("counts"), py::arg("out"), py::arg("launch"),
        py::arg("allocate"), ReleaseGil());
  m.def("spmm_minmax", &bind_spmm_minmax, py::arg("matrix"), py::arg("operands"), py::kw_only(),
        py::arg("minimum"), py::arg("out"), py::arg("arg"), py::arg("launch"), py::arg("allocate"),
        ReleaseGil());
  m.def("spmm_minmax_backward", &bind_spmm_minmax_backward, py::arg("matrix"), py::arg("operands"),
        py::kw_only(), py::arg("arg"), py::arg("grad"), py::arg("grad_x"), py::arg("grad_e"),
        py::arg("transpose"), py::arg("launch"), ReleaseGil());
  m.def("sddmm", &bind_sddmm, py::arg("matrix"), py::kw_only(), py::arg("left"),
        py::arg("left_target"), py::arg("right"), py::arg("right_target"), py::arg("message"),
        py::arg("depth"), py::arg("out"), py::arg("launch"), ReleaseGil());
  m.def("edge_softmax", &bind_edge_softmax, py::arg("matrix"), py::kw_only(), py::arg("values"),
        py::arg("grad"), py::arg("out"), py::arg("launch"), py::arg("allocate"), ReleaseGil());
  m.def("attention", &bind_attention, py::arg("inputs"), py::kw_only(), py::arg("out"),
        py::arg("lse"), py::arg("launch"), py::arg("allocate"), ReleaseGil());
  m.def("attention_backward", &bind_attention_backward, py::arg("inputs"), py::kw_only(),
        py::arg("grad"), py::arg("lse"), py::arg("delta"), py::arg("grad_x"), py::arg("grad_left"),
        py::arg("grad_right"), py::arg("grad_att"), py::arg("transpose"), py::arg("launch"),
        py::arg("allocate"), ReleaseGil());
  m.def("transpose", &bind_transpose, py::arg("matrix"), py::kw_only(), py::arg("indptr"),
        py::arg("indices"), py::arg("positions"), ReleaseGil());
  m.def("indptr_from_sorted", &bind_indptr_from_sorted, py::arg("keys"), py::kw_only(),
        py::arg("num_keys"), py::arg("indptr"), ReleaseGil());
  m.def("is_arange", &bind_is_arange, py::arg("ids"), ReleaseGil());
  m.def("limit_vector_bytes", &limit_vector_bytes, py::arg("bytes"));
  m.def("vector_bytes", &widest_vector_bytes);
  m.def("attention_fits", &attention_fits, py::arg("dtype"), py::arg("heads"), py::arg("depth"),
        py::arg("device"));
}

}  // namespace peergraph
