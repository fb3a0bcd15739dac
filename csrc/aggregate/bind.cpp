// Python face of the aggregate area.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "aggregate/attention.h"
#include "aggregate/csr_conversion.h"
#include "aggregate/edge_softmax.h"
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

using OperandTuple = std::tuple<uintptr_t, int, int64_t>;  // address, Target, columns
using LeasedOperands = Leased<Operands>;

CsrMatrix make_csr_matrix(uintptr_t indptr, int indptr_bytes, uintptr_t indices, int index_bytes,
                          uintptr_t edge_ids, int edge_id_bytes, int64_t num_rows,
                          int64_t num_columns, int64_t num_edges) {
  const auto is_width = [](int bytes) { return bytes == 4 || bytes == 8; };
  PG_CHECK_ARG(is_width(indptr_bytes) && is_width(index_bytes), "ids have 4 or 8 bytes");
  PG_CHECK_ARG(edge_id_bytes == 0 || is_width(edge_id_bytes), "edge ids have 4 or 8 bytes");
  PG_CHECK_ARG(num_rows >= 0 && num_columns >= 0 && num_edges >= 0, "sizes must not be negative");
  CsrMatrix rows;
  rows.indptr = pointer(indptr);
  rows.indices = pointer(indices);
  rows.edge_ids = pointer(edge_ids);
  rows.indptr_bytes = indptr_bytes;
  rows.index_bytes = index_bytes;
  rows.edge_id_bytes = edge_id_bytes;
  rows.num_rows = num_rows;
  rows.num_columns = num_columns;
  rows.num_edges = num_edges;
  return rows;
}

/// `leases` are of the table that `x_rows` are addresses of.
LeasedOperands make_operands(int message, uintptr_t x, uintptr_t e, int64_t columns,
                             int64_t e_columns, uintptr_t x_rows, const Leases& leases) {
  PG_CHECK_ARG(e_columns > 0 && columns % e_columns == 0, "e_columns must divide columns");
  const Operands of{static_cast<Message>(message), pointer(x), pointer(e), columns, e_columns,
                    pointer<const int64_t>(x_rows)};
  return {of, leases};
}

EdgeOperand make_operand(const OperandTuple& operand) {
  const auto& [address, target, columns] = operand;
  PG_CHECK_ARG(target >= 0 && target <= 2, "an operand's target must be 0..2");
  return {pointer(address), static_cast<Target>(target), columns};
}

void bind_spmm(const CsrMatrix& rows, const LeasedOperands& operands, int dtype, bool mean,
               uintptr_t out, [[maybe_unused]] int64_t max_chunks, int device,
               [[maybe_unused]] uintptr_t stream, int num_threads,
               [[maybe_unused]] const py::function& allocate) {
  const Opened of(operands);
  const Spmm op{rows, *of, static_cast<DType>(dtype), mean, pointer(out)};
  PG_ON_DEVICE(device, spmm_cpu(op, num_threads),
               spmm_cuda(op, max_chunks, with_gil(allocate), device, stream));
}

void bind_spread(const CsrMatrix& rows, const LeasedOperands& operands, int dtype, uintptr_t counts,
                 uintptr_t out, [[maybe_unused]] int64_t max_chunks, int device,
                 [[maybe_unused]] uintptr_t stream, int num_threads,
                 [[maybe_unused]] const py::function& allocate) {
  const Opened of(operands);
  const Spread op{rows, *of, static_cast<DType>(dtype), pointer<const int32_t>(counts),
                  pointer(out)};
  PG_ON_DEVICE(device, spread_cpu(op, num_threads),
               spread_cuda(op, max_chunks, with_gil(allocate), device, stream));
}

void bind_extremum(const CsrMatrix& rows, const LeasedOperands& operands, int dtype, bool minimum,
                   uintptr_t out, uintptr_t arg, int arg_bytes, [[maybe_unused]] int64_t max_chunks,
                   int device, [[maybe_unused]] uintptr_t stream, int num_threads,
                   [[maybe_unused]] const py::function& allocate) {
  const Opened of(operands);
  const Extremum op{rows,         *of,      static_cast<DType>(dtype), minimum, pointer(out),
                    pointer(arg), arg_bytes};
  PG_ON_DEVICE(device, extremum_cpu(op, num_threads),
               extremum_cuda(op, max_chunks, with_gil(allocate), device, stream));
}

void bind_extremum_grad(const CsrMatrix& rows, const LeasedOperands& operands, int dtype,
                        uintptr_t arg, int arg_bytes, uintptr_t grad, uintptr_t grad_x,
                        uintptr_t grad_e,
                        [[maybe_unused]] const std::optional<CsrMatrix>& transpose, int device,
                        [[maybe_unused]] uintptr_t stream, int num_threads) {
  const Opened of(operands);
  const ExtremumGrad op{rows,      *of,           static_cast<DType>(dtype), pointer(arg),
                        arg_bytes, pointer(grad), pointer(grad_x),           pointer(grad_e)};
  PG_ON_DEVICE(device, extremum_grad_cpu(op, num_threads),
               extremum_grad_cuda(op, transpose ? &*transpose : nullptr, device, stream));
}

void bind_sddmm(const CsrMatrix& rows, const OperandTuple& left, const OperandTuple& right,
                int message, int dtype, int64_t heads, int64_t depth, uintptr_t out, int device,
                [[maybe_unused]] uintptr_t stream, int num_threads) {
  const Sddmm op{rows,
                 make_operand(left),
                 make_operand(right),
                 static_cast<Message>(message),
                 static_cast<DType>(dtype),
                 heads,
                 depth,
                 pointer(out)};
  PG_ON_DEVICE(device, sddmm_cpu(op, num_threads), sddmm_cuda(op, device, stream));
}

void bind_edge_softmax(const CsrMatrix& rows, int dtype, int64_t heads, uintptr_t values,
                       uintptr_t grad, uintptr_t out, int device, [[maybe_unused]] uintptr_t stream,
                       int num_threads, [[maybe_unused]] const py::function& allocate) {
  const EdgeSoftmax op{
      rows, static_cast<DType>(dtype), heads, pointer(values), pointer(grad), pointer(out)};
  PG_ON_DEVICE(device, edge_softmax_cpu(op, num_threads),
               edge_softmax_cuda(op, with_gil(allocate), device, stream));
}

Attention make_attention(const CsrMatrix& rows, int dtype, bool dynamic, int64_t heads,
                         int64_t depth, int64_t loops, double slope, uintptr_t x, uintptr_t left,
                         uintptr_t right, uintptr_t att) {
  PG_CHECK_ARG(heads >= 0 && depth >= 0, "sizes must not be negative");
  return {rows,          static_cast<DType>(dtype),
          dynamic,       heads,
          depth,         loops,
          slope,         pointer(x),
          pointer(left), pointer(right),
          pointer(att)};
}

void bind_attention(const Attention& of, uintptr_t out, uintptr_t lse,
                    [[maybe_unused]] int64_t max_chunks, int device,
                    [[maybe_unused]] uintptr_t stream, int num_threads,
                    [[maybe_unused]] const py::function& allocate) {
  const AttentionForward op{of, pointer(out), pointer(lse)};
  PG_ON_DEVICE(device, attention_cpu(op, num_threads),
               attention_cuda(op, max_chunks, with_gil(allocate), device, stream));
}

void bind_attention_grad(const Attention& of, uintptr_t grad, uintptr_t lse, uintptr_t delta,
                         uintptr_t grad_x, uintptr_t grad_left, uintptr_t grad_right,
                         uintptr_t grad_att, const std::optional<CsrMatrix>& transpose,
                         [[maybe_unused]] int64_t max_chunks, int device,
                         [[maybe_unused]] uintptr_t stream, int num_threads,
                         [[maybe_unused]] const py::function& allocate) {
  const AttentionGrad op{of,
                         pointer(grad),
                         pointer(lse),
                         pointer(delta),
                         pointer(grad_x),
                         pointer(grad_left),
                         pointer(grad_right),
                         pointer(grad_att)};
  if (transpose) {
    PG_ON_DEVICE(
        device, attention_to_columns_cpu(op, *transpose, num_threads),
        attention_to_columns_cuda(op, *transpose, max_chunks, with_gil(allocate), device, stream));
  } else {
    PG_ON_DEVICE(device, attention_to_rows_cpu(op, num_threads),
                 attention_to_rows_cuda(op, max_chunks, with_gil(allocate), device, stream));
  }
}

void bind_transpose(const CsrMatrix& rows, uintptr_t indptr, uintptr_t indices,
                    uintptr_t positions) {
  transpose_cpu(rows, {pointer(indptr), pointer(indices), pointer(positions)});
}

bool bind_begins(uintptr_t keys, int id_bytes, int64_t count, int64_t num_keys, uintptr_t indptr) {
  PG_CHECK_ARG(id_bytes == 4 || id_bytes == 8, "ids have 4 or 8 bytes");
  return begins_cpu(pointer(keys), id_bytes, count, num_keys, pointer(indptr));
}

bool bind_counts_up(uintptr_t ids, int id_bytes, int64_t count) {
  PG_CHECK_ARG(id_bytes == 4 || id_bytes == 8, "ids have 4 or 8 bytes");
  return counts_up(pointer(ids), id_bytes, count);
}

/// Whether attention() takes heads of these sizes.
bool attention_fits(int dtype, int64_t heads, int64_t depth, int device) {
#ifdef PEERGRAPH_CUDA
  if (device >= 0) return attention_fits_cuda(static_cast<DType>(dtype), heads, depth);
#endif
  return device < 0 && dtype >= 0 && heads > 0 && depth > 0;
}

/// The widest vectors, in bytes, that all that runs with_vectors takes from now on, as far as the
/// CPU has them; results do not depend on it. What it was before.
int limit_vector_bytes(int bytes) {
  PG_CHECK_ARG(bytes == 16 || bytes == 32 || bytes == 64, "bytes must be 16, 32 or 64");
  return vector_bytes_limit().exchange(bytes);
}

}  // namespace

void register_aggregate(py::module_& m) {
  py::class_<CsrMatrix>(m, "CsrMatrix")
      .def(py::init(&make_csr_matrix), py::kw_only(), py::arg("indptr"), py::arg("indptr_bytes"),
           py::arg("indices"), py::arg("index_bytes"), py::arg("edge_ids"),
           py::arg("edge_id_bytes"), py::arg("num_rows"), py::arg("num_columns"),
           py::arg("num_edges"));
  py::class_<LeasedOperands>(m, "Operands")
      .def(py::init(&make_operands), py::kw_only(), py::arg("message"), py::arg("x"), py::arg("e"),
           py::arg("columns"), py::arg("e_columns"), py::arg("x_rows") = 0,
           py::arg("leases") = Leases{});
  m.def("spmm", &bind_spmm, py::arg("rows"), py::arg("of"), py::arg("dtype"), py::arg("mean"),
        py::arg("out"), py::arg("max_chunks"), py::arg("device"), py::arg("stream"),
        py::arg("num_threads"), py::arg("allocate"), ReleaseGil());
  m.def("spread", &bind_spread, py::arg("rows"), py::arg("of"), py::arg("dtype"), py::arg("counts"),
        py::arg("out"), py::arg("max_chunks"), py::arg("device"), py::arg("stream"),
        py::arg("num_threads"), py::arg("allocate"), ReleaseGil());
  m.def("extremum", &bind_extremum, py::arg("rows"), py::arg("of"), py::arg("dtype"),
        py::arg("minimum"), py::arg("out"), py::arg("arg"), py::arg("arg_bytes"),
        py::arg("max_chunks"), py::arg("device"), py::arg("stream"), py::arg("num_threads"),
        py::arg("allocate"), ReleaseGil());
  m.def("extremum_grad", &bind_extremum_grad, py::arg("rows"), py::arg("of"), py::arg("dtype"),
        py::arg("arg"), py::arg("arg_bytes"), py::arg("grad"), py::arg("grad_x"), py::arg("grad_e"),
        py::arg("transpose"), py::arg("device"), py::arg("stream"), py::arg("num_threads"),
        ReleaseGil());
  m.def("sddmm", &bind_sddmm, py::arg("rows"), py::arg("left"), py::arg("right"),
        py::arg("message"), py::arg("dtype"), py::arg("heads"), py::arg("depth"), py::arg("out"),
        py::arg("device"), py::arg("stream"), py::arg("num_threads"), ReleaseGil());
  m.def("edge_softmax", &bind_edge_softmax, py::arg("rows"), py::arg("dtype"), py::arg("heads"),
        py::arg("values"), py::arg("grad"), py::arg("out"), py::arg("device"), py::arg("stream"),
        py::arg("num_threads"), py::arg("allocate"), ReleaseGil());
  py::class_<Attention>(m, "Attention")
      .def(py::init(&make_attention), py::kw_only(), py::arg("rows"), py::arg("dtype"),
           py::arg("dynamic"), py::arg("heads"), py::arg("depth"), py::arg("loops"),
           py::arg("slope"), py::arg("x"), py::arg("left"), py::arg("right"), py::arg("att"));
  m.def("attention", &bind_attention, py::arg("of"), py::arg("out"), py::arg("lse"),
        py::arg("max_chunks"), py::arg("device"), py::arg("stream"), py::arg("num_threads"),
        py::arg("allocate"), ReleaseGil());
  m.def("attention_grad", &bind_attention_grad, py::arg("of"), py::arg("grad"), py::arg("lse"),
        py::arg("delta"), py::arg("grad_x"), py::arg("grad_left"), py::arg("grad_right"),
        py::arg("grad_att"), py::arg("transpose"), py::arg("max_chunks"), py::arg("device"),
        py::arg("stream"), py::arg("num_threads"), py::arg("allocate"), ReleaseGil());
  m.def("transpose", &bind_transpose, py::arg("rows"), py::arg("indptr"), py::arg("indices"),
        py::arg("positions"), ReleaseGil());
  m.def("begins", &bind_begins, py::arg("keys"), py::arg("id_bytes"), py::arg("count"),
        py::arg("num_keys"), py::arg("indptr"), ReleaseGil());
  m.def("counts_up", &bind_counts_up, py::arg("ids"), py::arg("id_bytes"), py::arg("count"),
        ReleaseGil());
  m.def("limit_vector_bytes", &limit_vector_bytes, py::arg("bytes"));
  m.def("vector_bytes", &widest_vector_bytes);
  m.def("attention_fits", &attention_fits, py::arg("dtype"), py::arg("heads"), py::arg("depth"),
        py::arg("device"));
}

}  // namespace peergraph
