// Python bindings of full-graph training. They compare the dtypes and sizes of all tensors.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "common/check.h"
#include "common/on_device.h"
#include "fullgraph/row_random.h"

namespace py = pybind11;

namespace peergraph {
namespace {

RandomRows make_rows(uint64_t seed, const std::optional<TensorRef>& device_seed,
                     const TensorRef& row_ids, const TensorRef& out) {
  PG_CHECK_ARG(row_ids.type == ScalarType::kInt64, "row_ids must be int64");
  PG_CHECK_ARG(
      !device_seed || (device_seed->type == ScalarType::kInt64 && device_seed->num_elements() == 1),
      "device_seed must be one int64");
  const int64_t rows = row_ids.num_elements(), elements = out.num_elements();
  PG_CHECK_ARG(rows == 0 ? elements == 0 : elements % rows == 0,
               "out must have a row for each of row_ids");
  return {seed, static_cast<const uint64_t*>(pointer(device_seed)), pointer<const int64_t>(row_ids),
          rows, rows == 0 ? 0 : elements / rows};
}

void bind_fill_random(uint64_t seed, const std::optional<TensorRef>& device_seed,
                      const TensorRef& row_ids, Distribution distribution, const TensorRef& out,
                      const Launch& launch) {
  const FillRandom op{make_rows(seed, device_seed, row_ids, out), distribution, out.dtype("out"),
                      out.data};
  PG_ON_DEVICE(launch.device, fill_random_cpu(op, launch.num_threads),
               fill_random_cuda(op, launch));
}

void bind_dropout_rows(uint64_t seed, const std::optional<TensorRef>& device_seed,
                       const TensorRef& row_ids, double p, double scale,
                       const std::optional<TensorRef>& x, const TensorRef& out,
                       const Launch& launch) {
  PG_CHECK_ARG(p >= 0 && p <= 1, "p must be in 0..1, got " + std::to_string(p));
  const auto threshold = static_cast<uint64_t>(p * 4294967296.0);
  const DType dtype = out.dtype("out");
  const DropoutRows op{make_rows(seed, device_seed, row_ids, out),
                       dtype,
                       threshold,
                       scale,
                       x ? x->values("x", dtype, out.num_elements()) : nullptr,
                       out.data};
  PG_ON_DEVICE(launch.device, dropout_rows_cpu(op, launch.num_threads),
               dropout_rows_cuda(op, launch));
}

}  // namespace

void register_fullgraph(py::module_& m) {
  py::enum_<Distribution>(m, "Distribution")
      .value("uniform", Distribution::kUniform)
      .value("normal", Distribution::kNormal)
      .value("exponential", Distribution::kExponential);
  m.def("fill_random", &bind_fill_random, py::kw_only(), py::arg("seed"), py::arg("device_seed"),
        py::arg("row_ids"), py::arg("distribution"), py::arg("out"), py::arg("launch"),
        ReleaseGil());
  m.def("dropout_rows", &bind_dropout_rows, py::kw_only(), py::arg("seed"), py::arg("device_seed"),
        py::arg("row_ids"), py::arg("p"), py::arg("scale"), py::arg("x"), py::arg("out"),
        py::arg("launch"), ReleaseGil());
}

}  // namespace peergraph
