// Python bindings of the aggregate area. They compare the dtypes and sizes of all tensors.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "aggregate/attention.h"
#include "aggregate/bound_operands.h"
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

using LeasedOperands = Leased<BoundOperands>;
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
  PG_CHECK_ARG(!edge_ids || edge_ids->num_elements() >= matrix.num_edges,
               "edge_ids must have one id for each edge");
  matrix.schedule = schedule;
  matrix.schedule.max_chunks = max_chunks;
  return matrix;
}

LeasedOperands bound(Operands operands, const OptionalTensor& x, const OptionalTensor& e,
                     std::optional<int64_t> num_addresses, const Leases& leases) {
  PG_CHECK_ARG(
      operands.columns >= 0 && operands.e_columns > 0 && operands.columns % operands.e_columns == 0,
      "e_columns must divide columns");
  return {{operands, x, e, num_addresses}, leases};
}

LeasedOperands make_operands(Message message, const OptionalTensor& x, const OptionalTensor& e,
                             int64_t columns, int64_t e_columns) {
  return bound({message, pointer(x), pointer(e), columns, e_columns, nullptr}, x, e, {}, {});
}

/// `codec` describes narrow rows, and `scale_addresses` are where their scales are, if apart;
/// `leases` are the leases of the tables that the addresses point into.
LeasedOperands make_indirect_operands(Message message, const TensorRef& addresses,
                                      uintptr_t address_bits, const OptionalTensor& e,
                                      int64_t columns, int64_t e_columns, const Leases& leases,
                                      const std::optional<RowCodec>& codec,
                                      const OptionalTensor& scale_addresses) {
  const auto* rows = addresses.int64_values("addresses");
  Operands operands{message, pointer(address_bits), pointer(e), columns, e_columns, rows};
  if (codec) {
    PG_CHECK_ARG(codec->columns == columns, "the codec must have the columns of the operation");
    operands.codec = *codec;
  }
  if (scale_addresses) {
    PG_CHECK_ARG(codec && codec->num_scales() > 0, "scale_addresses are for a codec with scales");
    operands.codec = codec->apart();
    operands.scale_rows =
        scale_addresses->int64_values("scale_addresses", addresses.num_elements());
  }
  return bound(operands, {}, e, addresses.num_elements(), leases);
}

/// `out` [rows, at least the columns of the operands]: the sums are written from `first_column` on.
/// `dtype` is that of the operands; None: that of `out`.
void bind_spmm(const CsrMatrix& matrix, const LeasedOperands& operands, bool mean, bool accumulate,
               const TensorRef& out, const Launch& launch,
               [[maybe_unused]] const py::function& allocate, std::optional<DType> dtype,
               int64_t first_column) {
  const Opened opened(operands);
  const int64_t stride = out.size(1), columns = opened->operands.columns;
  PG_CHECK_ARG(first_column >= 0 && first_column <= stride && columns <= stride - first_column,
               "out has too few columns");
  const DType out_dtype = out.dtype("out"), of_operands = dtype.value_or(out_dtype);
  check_out_dtype(of_operands, out_dtype);
  auto* const sums =
      static_cast<char*>(out.values("out", out_dtype, checked_product(matrix.num_rows, stride)));
  Spmm op{opened->checked(matrix, matrix.num_columns, of_operands), **opened, of_operands, mean,
          accumulate};
  op.out = sums + first_column * out.item_bytes;
  op.out_dtype = out_dtype;
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
  const DType dtype = out.dtype("out");
  const int64_t columns = own->operands.columns;
  PG_CHECK_ARG(local.num_rows == remote.num_rows && columns == others->operands.columns,
               "local and remote edges must have the same rows and columns");
  const InterleavedSpmm op{own->checked(local, local.num_columns, dtype),
                           others->checked(remote, remote.num_columns, dtype),
                           **own,
                           **others,
                           dtype,
                           mean,
                           interleaving,
                           out.values("out", dtype, checked_product(local.num_rows, columns))};
  PG_ON_DEVICE(launch.device, interleaved_spmm_cpu(op, launch.num_threads),
               interleaved_spmm_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_transposed(const CsrMatrix& matrix, const LeasedOperands& operands, DType dtype,
                          const OptionalTensor& counts, const TensorRef& out, const Launch& launch,
                          [[maybe_unused]] const py::function& allocate) {
  const Opened opened(operands);
  const int64_t columns = opened->operands.columns;
  const SpmmTransposed op{
      opened->checked(matrix, matrix.num_rows, dtype), **opened, dtype,
      counts ? counts->int32_values("counts", matrix.num_columns) : nullptr,
      out.values("out", sum_dtype(dtype), checked_product(matrix.num_columns, columns))};
  PG_ON_DEVICE(launch.device, spmm_transposed_cpu(op, launch.num_threads),
               spmm_transposed_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_minmax(const CsrMatrix& matrix, const LeasedOperands& operands, bool minimum,
                      const TensorRef& out, const TensorRef& arg, const Launch& launch,
                      [[maybe_unused]] const py::function& allocate) {
  const Opened opened(operands);
  const DType dtype = out.dtype("out");
  const int64_t count = checked_product(matrix.num_rows, opened->operands.columns);
  const int arg_bytes = arg.id_bytes("arg");
  PG_CHECK_ARG(arg_bytes == 8 || matrix.num_edges <= INT32_MAX, "arg must be int64");
  const SpmmMinMax op{opened->checked(matrix, matrix.num_columns, dtype),
                      **opened,
                      dtype,
                      minimum,
                      out.values("out", dtype, count),
                      arg.ids("arg", arg_bytes, count),
                      arg_bytes};
  PG_ON_DEVICE(launch.device, spmm_minmax_cpu(op, launch.num_threads),
               spmm_minmax_cuda(op, launch, with_gil(allocate)));
}

void bind_spmm_minmax_backward(const CsrMatrix& matrix, const LeasedOperands& operands,
                               const TensorRef& arg, const TensorRef& grad,
                               const OptionalTensor& grad_x, const OptionalTensor& grad_e,
                               [[maybe_unused]] const std::optional<CsrMatrix>& transpose,
                               const Launch& launch) {
  const Opened opened(operands);
  const DType dtype = grad.dtype("grad");
  const Operands& inputs = **opened;
  const int64_t count = checked_product(matrix.num_rows, inputs.columns);
  PG_CHECK_ARG(!opened->num_addresses, "gradients need x");
  // Without x or e, the kernel takes 0 and 1: gradients of some messages need neither.
  const bool reads = inputs.columns > 0;
  if (opened->x && reads) opened->check_x(matrix.num_columns, dtype);
  CsrMatrix edges = opened->e && reads ? opened->with_e(matrix, dtype) : matrix;
  if (grad_e && reads)
    edges = with_edge_rows(edges, rows_of(*grad_e, "grad_e", sum_dtype(dtype), inputs.e_columns));
  const int arg_bytes = arg.id_bytes("arg");
  const SpmmMinMaxBackward op{
      edges,
      inputs,
      dtype,
      arg.ids("arg", arg_bytes, count),
      arg_bytes,
      grad.values("grad", dtype, count),
      grad_x ? grad_x->values("grad_x", sum_dtype(dtype),
                              checked_product(matrix.num_columns, inputs.columns))
             : nullptr,
      pointer(grad_e)};
  PG_ON_DEVICE(launch.device, spmm_minmax_backward_cpu(op, launch.num_threads),
               spmm_minmax_backward_cuda(op, transpose ? &*transpose : nullptr, launch));
}

/// An operand of sddmm, of a row for each of the ids by which it is looked up. `matrix` gets the
/// bound of its edge ids.
EdgeOperand make_edge_operand(const OptionalTensor& tensor, const char* name, Target target,
                              DType dtype, int64_t op_columns, CsrMatrix* matrix) {
  if (!tensor) return {nullptr, target, 0};
  const int64_t columns = tensor->size(1), rows = rows_of(*tensor, name, dtype, columns);
  PG_CHECK_ARG(columns > 0 ? op_columns % columns == 0 : op_columns == 0,
               std::string(name) + " must have a divisor of the operation's columns");
  if (target == Target::kEdge)
    *matrix = with_edge_rows(*matrix, rows);
  else
    PG_CHECK_ARG(rows >= (target == Target::kRow ? matrix->num_rows : matrix->num_columns),
                 std::string(name) + " has too few rows: " + std::to_string(rows));
  return {tensor->data, target, columns};
}

void bind_sddmm(const CsrMatrix& matrix, const OptionalTensor& left, Target left_target,
                const OptionalTensor& right, Target right_target, Message message, int64_t depth,
                const TensorRef& out, const Launch& launch) {
  const int64_t heads = out.size(1), columns = checked_product(heads, depth);
  PG_CHECK_ARG((left || !uses_u(message)) && (right || !uses_e(message)),
               "the message needs an operand that is missing");
  const DType dtype = left ? left->dtype("left") : right->dtype("right");
  const bool is_wide = out.dtype("out") != dtype;
  CsrMatrix edges =
      with_edge_rows(matrix, rows_of(out, "out", is_wide ? sum_dtype(dtype) : dtype, heads));
  const EdgeOperand u = make_edge_operand(left, "left", left_target, dtype, columns, &edges);
  const EdgeOperand e = make_edge_operand(right, "right", right_target, dtype, columns, &edges);
  const Sddmm op{edges, u, e, message, dtype, heads, depth, out.data, is_wide};
  PG_ON_DEVICE(launch.device, sddmm_cpu(op, launch.num_threads), sddmm_cuda(op, launch));
}

void bind_edge_softmax(const CsrMatrix& matrix, const TensorRef& values, const OptionalTensor& grad,
                       const TensorRef& out, const Launch& launch,
                       [[maybe_unused]] const py::function& allocate) {
  const DType dtype = out.dtype("out");
  const int64_t heads = out.size(1);
  CsrMatrix edges = with_edge_rows(matrix, rows_of(out, "out", dtype, heads));
  edges = with_edge_rows(edges, rows_of(values, "values", dtype, heads));
  if (grad) edges = with_edge_rows(edges, rows_of(*grad, "grad", dtype, heads));
  const EdgeSoftmax op{edges, dtype, heads, values.data, pointer(grad), out.data};
  PG_ON_DEVICE(launch.device, edge_softmax_cpu(op, launch.num_threads),
               edge_softmax_cuda(op, launch, with_gil(allocate)));
}

Attention make_attention(const CsrMatrix& matrix, const TensorRef& x, const OptionalTensor& left,
                         const OptionalTensor& right, const OptionalTensor& att,
                         const OptionalTensor& row_cuts, const OptionalTensor& column_cuts,
                         int64_t loops, double slope) {
  const DType dtype = x.dtype("x"), sums = sum_dtype(dtype);
  const int64_t heads = x.size(1), depth = x.size(2), columns = checked_product(heads, depth);
  const int64_t sources = matrix.num_columns, rows = matrix.num_rows;
  x.values("x", dtype, checked_product(sources, columns));
  PG_CHECK_ARG(loops >= -1 && loops <= std::min(sources, rows),
               "loops must be -1 .. the number of nodes");
  PG_CHECK_ARG(row_cuts.has_value() == column_cuts.has_value() && (att || !row_cuts),
               "row_cuts and column_cuts go with att");
  const int64_t vectors = row_cuts ? row_cuts->num_elements() - 1 : 1;
  PG_CHECK_ARG(vectors >= 1, "row_cuts must have at least two elements");
  if (att) {
    PG_CHECK_ARG(right && !left, "dynamic attention takes right, and no left");
    att->values("att", sums, checked_product(vectors, columns));
    right->values("right", dtype, checked_product(rows, columns));
  } else {
    PG_CHECK_ARG(left.has_value(), "attention takes left or att");
    left->values("left", sums, checked_product(sources, heads));
    if (right) right->values("right", sums, checked_product(rows, heads));
  }
  Attention inputs{matrix, dtype, att.has_value(), heads, depth, loops, slope, x.data};
  inputs.left = pointer(left);
  inputs.right = pointer(right);
  inputs.att = pointer(att);
  inputs.num_vectors = vectors;
  inputs.row_cuts = int64_values(row_cuts, "row_cuts", vectors + 1);
  inputs.column_cuts = int64_values(column_cuts, "column_cuts", vectors + 1);
  return inputs;
}

void bind_attention(const Attention& inputs, const TensorRef& out, const TensorRef& lse,
                    const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const int64_t rows = inputs.matrix.num_rows;
  const AttentionForward op{
      inputs, out.values("out", inputs.dtype, checked_product(rows, inputs.columns())),
      lse.values("lse", sum_dtype(inputs.dtype), checked_product(rows, inputs.heads))};
  PG_ON_DEVICE(launch.device, attention_cpu(op, launch.num_threads),
               attention_cuda(op, launch, with_gil(allocate)));
}

/// Gradients without elements are not computed.
void bind_attention_backward(const Attention& inputs, const TensorRef& grad, const TensorRef& lse,
                             const TensorRef& delta, const TensorRef& grad_x,
                             const TensorRef& grad_left, const TensorRef& grad_right,
                             const TensorRef& grad_att, const std::optional<CsrMatrix>& transpose,
                             const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const DType sums = sum_dtype(inputs.dtype);
  const int64_t rows = inputs.matrix.num_rows, sources = inputs.matrix.num_columns;
  const int64_t wide = checked_product(rows, inputs.columns());
  const int64_t narrow = checked_product(rows, inputs.heads);
  const auto if_any = [](const TensorRef& gradient, const char* name, DType dtype,
                         int64_t least) -> void* {
    return gradient.num_elements() == 0 ? nullptr : gradient.values(name, dtype, least);
  };
  const DType of_x = transpose ? inputs.dtype : sums;
  const AttentionBackward op{
      inputs,
      grad.values("grad", inputs.dtype, wide),
      lse.values("lse", sums, narrow),
      delta.values("delta", sums, narrow),
      if_any(grad_x, "grad_x", of_x, checked_product(sources, inputs.columns())),
      if_any(grad_left, "grad_left", sums, checked_product(sources, inputs.heads)),
      if_any(grad_right, "grad_right", sums, inputs.dynamic ? wide : narrow),
      if_any(grad_att, "grad_att", sums, wide)};
  if (transpose) {
    PG_CHECK_ARG(transpose->num_rows <= sources && transpose->num_columns <= rows,
                 "the transpose must have the sources as rows");
    PG_CHECK_ARG(transpose->num_rows == 0 || inputs.columns() == 0 ||
                     (op.grad_x != nullptr && (inputs.dynamic || op.grad_left != nullptr)),
                 "gradients of sources need grad_x, and grad_left beside left");
    PG_ON_DEVICE(launch.device, attention_backward_columns_cpu(op, *transpose, launch.num_threads),
                 attention_backward_columns_cuda(op, *transpose, launch, with_gil(allocate)));
  } else {
    PG_CHECK_ARG(launch.device >= 0 || wide == 0 ||
                     (op.grad_right != nullptr && (!inputs.dynamic || op.grad_att != nullptr)),
                 "gradients of destinations need grad_right, and grad_att beside att");
    PG_ON_DEVICE(launch.device, attention_backward_rows_cpu(op, launch.num_threads),
                 attention_backward_rows_cuda(op, launch, with_gil(allocate)));
  }
}

void bind_transpose(const CsrMatrix& matrix, const TensorRef& indptr, const TensorRef& indices,
                    const TensorRef& positions) {
  const int offset_bytes = matrix.indptr_bytes, id_bytes = matrix.index_bytes;
  PG_CHECK_ARG(offset_bytes == 8 || matrix.num_edges <= INT32_MAX,
               "indptr must be int64 for more than 2^31 - 1 edges");
  PG_CHECK_ARG(id_bytes == 8 || matrix.num_rows <= INT32_MAX,
               "indices must be int64 for more than 2^31 - 1 rows");
  PG_CHECK_ARG(matrix.num_columns < INT64_MAX, "num_columns is out of range");
  transpose_cpu(matrix, {indptr.ids("indptr", offset_bytes, matrix.num_columns + 1),
                         indices.ids("indices", id_bytes, matrix.num_edges),
                         positions.ids("positions", offset_bytes, matrix.num_edges)});
}

bool bind_indptr_from_sorted(const TensorRef& keys, int64_t num_keys, const TensorRef& indptr) {
  const int id_bytes = keys.id_bytes("keys");
  const int64_t count = keys.num_elements();
  PG_CHECK_ARG(num_keys >= 0 && num_keys < INT64_MAX, "num_keys is out of range");
  PG_CHECK_ARG(id_bytes == 8 || count <= INT32_MAX, "keys must be int64 for 2^31 edges");
  return indptr_from_sorted(keys.data, id_bytes, count, num_keys,
                            indptr.ids("indptr", id_bytes, num_keys + 1));
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
           py::arg("left"), py::arg("right"), py::arg("att"), py::arg("row_cuts"),
           py::arg("column_cuts"), py::arg("loops"), py::arg("slope"));
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
