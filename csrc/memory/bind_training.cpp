// Python bindings of trained tables.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"
#include "memory/rounds.h"
#include "memory/sparse_update.h"

namespace py = pybind11;

namespace peergraph {
namespace {

UpdateRule make_rule(Optimizer optimizer, double step_size, double grad_scale, double eps,
                     double beta1, double beta2) {
  return {optimizer, step_size, grad_scale, eps, beta1, beta2};
}

/// Sums runs of rows of `values` [rows, width]; `offsets` [count + 1] bounds the runs.
void sum_runs(const TensorRef& values, const TensorRef& positions, const TensorRef& offsets,
              const TensorRef& out, const Launch& launch) {
  const DType dtype = values.dtype("values");
  const int64_t width = values.size(1);
  values.values("values", dtype, checked_product(values.size(0), width));
  const Runs runs{positions.int64_values("positions"), offsets.int64_values("offsets", 1),
                  offsets.num_elements() - 1, positions.num_elements(), values.size(0)};
  void* const sums = out.values("out", sum_dtype(dtype), checked_product(runs.count, width));
  PG_ON_DEVICE(launch.device,
               sum_runs_cpu(values.data, dtype, width, runs, sums, launch.num_threads),
               sum_runs_cuda(values.data, dtype, width, runs, sums, launch.device, launch.stream));
}

/// `rows` is int64 [count], `grads` [count, width] of the accumulator's type of `dtype`.
void sparse_update(const Leased<TableView>& leased, DType dtype,
                   const std::vector<Leased<TableView>>& states, const UpdateRule& rule,
                   const TensorRef& rows, const TensorRef& grads, const Launch& launch) {
  PG_CHECK_ARG(states.size() <= kMaxStates, "there are at most 2 states");
  PG_CHECK_ARG(rows.type == ScalarType::kInt64, "rows must be int64");
  PG_CHECK_ARG(grads.num_dims == 2 && grads.size(0) == rows.num_elements(),
               "grads must be [count, width], a row for each of rows");
  PG_CHECK_ARG((grads.dtype("grads") == DType::kFloat64) == (dtype == DType::kFloat64) &&
                   grads.type <= ScalarType::kFloat64,
               "grads must have the accumulator's type: float64 for float64, else float32");
  Leases leases = leased.leases();
  for (const auto& state : states) add_leases(leases, state.leases());
  const Entered entered(leases);
  TrainedRows trained{leased.unopened(), dtype, {}};
  for (size_t s = 0; s < states.size(); ++s) trained.states[s] = states[s].unopened();
  const RowGradients gradients{pointer<const int64_t>(rows), grads.data, grads.size(0),
                               grads.size(1)};
  check_update(trained, gradients, rule, static_cast<int>(states.size()));
  PG_ON_DEVICE(launch.device, sparse_update_cpu(trained, gradients, rule, launch.num_threads),
               sparse_update_cuda(trained, gradients, rule, launch.device, launch.stream));
}

/// The counters are in the memory of the lease.
void post(uintptr_t address, int64_t round, const std::shared_ptr<Lease>& lease) {
  const Leases leases{lease};
  const Entered entered(leases);
  post_round(address, round);
}

std::vector<int> await(const std::vector<uintptr_t>& addresses, int64_t round, double seconds,
                       const std::shared_ptr<Lease>& lease) {
  const Leases leases{lease};
  const Entered entered(leases);
  return await_round(addresses, round, seconds);
}

}  // namespace

void register_training(py::module_& m) {
  py::enum_<Optimizer>(m, "Optimizer")
      .value("sgd", Optimizer::kSgd)
      .value("adagrad", Optimizer::kAdagrad)
      .value("adam", Optimizer::kAdam);
  py::class_<UpdateRule>(m, "UpdateRule")
      .def(py::init(&make_rule), py::kw_only(), py::arg("optimizer"), py::arg("step_size"),
           py::arg("grad_scale") = 1.0, py::arg("eps") = 0.0, py::arg("beta1") = 0.0,
           py::arg("beta2") = 0.0);
  m.def("sum_runs", &sum_runs, py::arg("values"), py::arg("positions"), py::arg("offsets"),
        py::arg("out"), py::arg("launch"), ReleaseGil());
  m.def("sparse_update", &sparse_update, py::arg("table"), py::arg("dtype"), py::arg("states"),
        py::arg("rule"), py::arg("rows"), py::arg("grads"), py::arg("launch"), ReleaseGil());
  m.def("post_round", &post, py::arg("address"), py::arg("round"), py::arg("lease"));
  m.def("await_round", &await, py::arg("addresses"), py::arg("round"), py::arg("seconds"),
        py::arg("lease"), ReleaseGil());
}

}  // namespace peergraph
