// Python bindings of steps beside aggregation: of rows, and of edges of mini-batches. They compare
// the dtypes and sizes of all tensors.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "aggregate/activation.h"
#include "aggregate/bound_operands.h"
#include "aggregate/edge_grouping.h"
#include "aggregate/row_copy.h"
#include "aggregate/spmm.h"
#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using OptionalTensor = std::optional<TensorRef>;

/// `out` [rows, at least the columns of the operands]: rows are written from `first_column` on.
void bind_copy_rows(const Leased<BoundOperands>& operands, DType dtype, int64_t first_column,
                    const TensorRef& out, const Launch& launch) {
  const Opened opened(operands);
  const DType out_dtype = out.dtype("out");
  check_out_dtype(dtype, out_dtype);
  const int64_t stride = out.size(1), num_rows = rows_of(out, "out", out_dtype, stride);
  PG_CHECK_ARG(first_column >= 0 && first_column <= stride &&
                   opened->operands.columns <= stride - first_column,
               "out has too few columns");
  opened->check_x(num_rows, dtype);
  const RowCopy op{**opened,  dtype,
                   num_rows,  static_cast<char*>(out.data) + first_column * out.item_bytes,
                   out_dtype, stride};
  PG_ON_DEVICE(launch.device, copy_rows_cpu(op, launch.num_threads), copy_rows_cuda(op, launch));
}

/// The scale of kept elements, so that their expected value does not change.
double scale_of(uint32_t threshold) {
  return threshold >= kRandomRange ? 0 : double{kRandomRange} / (kRandomRange - threshold);
}

uint32_t threshold_of(double p) {
  PG_CHECK_ARG(p >= 0 && p <= 1, "p must be in 0..1, got " + std::to_string(p));
  return static_cast<uint32_t>(std::lround(p * kRandomRange));
}

void bind_activate(const TensorRef& x, const OptionalTensor& bias, bool relu, double p,
                   const OptionalTensor& seed, const OptionalTensor& bits, const TensorRef& out,
                   const Launch& launch) {
  const uint32_t threshold = threshold_of(p);
  PG_CHECK_ARG(threshold == 0 || seed, "dropout needs a seed");
  const DType dtype = x.dtype("x");
  const int64_t columns = x.size(1), num_rows = rows_of(x, "x", dtype, columns);
  Activation op{dtype,
                num_rows,
                columns,
                x.data,
                bias ? bias->values("bias", sum_dtype(dtype), columns) : nullptr,
                relu,
                threshold,
                scale_of(threshold),
                reinterpret_cast<const uint64_t*>(int64_values(seed, "seed", 1)),
                nullptr,
                out.values("out", dtype, num_rows * columns)};
  if (bits) op.bits = bits->byte_values("bits", num_rows * op.bytes_of_row());
  PG_ON_DEVICE(launch.device, activate_cpu(op, launch.num_threads), activate_cuda(op, launch));
}

void bind_activate_backward(const TensorRef& grad, const TensorRef& bits, double p,
                            const TensorRef& out, const OptionalTensor& partial,
                            const Launch& launch) {
  const DType dtype = grad.dtype("grad");
  const int64_t columns = grad.size(1), num_rows = rows_of(grad, "grad", dtype, columns);
  ActivationGradient op{dtype,
                        num_rows,
                        columns,
                        grad.data,
                        nullptr,
                        scale_of(threshold_of(p)),
                        out.values("out", dtype, num_rows * columns),
                        pointer(partial),
                        activation_parts(num_rows)};
  if (partial) op.num_parts = rows_of(*partial, "partial", sum_dtype(dtype), columns);
  PG_CHECK_ARG(op.num_parts > 0, "partial must have a row");
  op.bits = bits.byte_values("bits", num_rows * op.bytes_of_row());
  PG_ON_DEVICE(launch.device, activate_backward_cpu(op, launch.num_threads),
               activate_backward_cuda(op, launch));
}

void check_few_edges(const CsrMatrix& matrix) {
  PG_CHECK_ARG(matrix.num_edges < int64_t{1} << 31 && matrix.num_rows < int64_t{1} << 31,
               "edges are grouped by column up to 2^31");
}

void bind_rank_edges(const CsrMatrix& matrix, const TensorRef& counts, const TensorRef& ranks,
                     const Launch& launch) {
  check_few_edges(matrix);
  const EdgeRanks op{matrix, counts.int32_values("counts", matrix.num_columns),
                     ranks.int32_values("ranks", matrix.num_edges)};
  PG_ON_DEVICE(launch.device, rank_edges_cpu(op), rank_edges_cuda(op, launch));
}

void bind_place_edges(const CsrMatrix& matrix, const TensorRef& indptr, const TensorRef& ranks,
                      const TensorRef& rows, const TensorRef& edge_ids, const Launch& launch) {
  check_few_edges(matrix);
  const EdgePlaces op{matrix, indptr.int32_values("indptr", matrix.num_columns + 1),
                      ranks.int32_values("ranks", matrix.num_edges),
                      rows.int32_values("rows", matrix.num_edges),
                      edge_ids.int32_values("edge_ids", matrix.num_edges)};
  PG_ON_DEVICE(launch.device, place_edges_cpu(op), place_edges_cuda(op, launch));
}

}  // namespace

void register_dense(py::module_& m) {
  m.def("copy_rows", &bind_copy_rows, py::arg("operands"), py::kw_only(), py::arg("dtype"),
        py::arg("first_column"), py::arg("out"), py::arg("launch"), ReleaseGil());
  m.def("rank_edges", &bind_rank_edges, py::arg("matrix"), py::kw_only(), py::arg("counts"),
        py::arg("ranks"), py::arg("launch"), ReleaseGil());
  m.def("place_edges", &bind_place_edges, py::arg("matrix"), py::kw_only(), py::arg("indptr"),
        py::arg("ranks"), py::arg("rows"), py::arg("edge_ids"), py::arg("launch"), ReleaseGil());
  m.def("activate", &bind_activate, py::kw_only(), py::arg("x"), py::arg("bias"), py::arg("relu"),
        py::arg("p"), py::arg("seed"), py::arg("bits"), py::arg("out"), py::arg("launch"),
        ReleaseGil());
  m.def("activate_backward", &bind_activate_backward, py::kw_only(), py::arg("grad"),
        py::arg("bits"), py::arg("p"), py::arg("out"), py::arg("partial"), py::arg("launch"),
        ReleaseGil());
  m.def("activation_parts", &activation_parts, py::arg("num_rows"));
}

}  // namespace peergraph
