// The compiled module: build facts, and one registration per area.
#include <pybind11/pybind11.h>

#include "common/element.h"
#include "common/launch.h"

namespace py = pybind11;

namespace peergraph {
void register_memory(py::module_& m);
void register_main_thread(py::module_& m);
void register_gather_tables(py::module_& m);
void register_training(py::module_& m);
void register_remote_rows(py::module_& m);
void register_store(py::module_& m);
void register_sampling(py::module_& m);
void register_ahead(py::module_& m);
void register_walks(py::module_& m);
void register_aggregate(py::module_& m);
void register_dense(py::module_& m);
void register_fullgraph(py::module_& m);

namespace {

/// Registers the types that the bindings of all areas take.
void register_common(py::module_& m) {
  py::class_<Launch>(m, "Launch")
      .def(py::init([](int device, uintptr_t stream, int num_threads) {
             return Launch{device, stream, num_threads};
           }),
           py::kw_only(), py::arg("device"), py::arg("stream"), py::arg("num_threads"))
      .def_readonly("device", &Launch::device, "Index of the GPU; -1 is the CPU.")
      .def_readonly("stream", &Launch::stream, "Address of the CUDA stream; 0 on the CPU.")
      .def_readonly("num_threads", &Launch::num_threads, "For work on the CPU.");
  py::enum_<DType>(m, "DType")
      .value("float32", DType::kFloat32)
      .value("float64", DType::kFloat64)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBfloat16);
}

}  // namespace
}  // namespace peergraph

PYBIND11_MODULE(_C, m) {
#ifdef PEERGRAPH_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
  // The reason why there is no CUDA part; empty if there is one.
  m.attr("no_cuda") = PEERGRAPH_NO_CUDA;
  m.attr("compiler") = PEERGRAPH_COMPILER;
  // nvcc's version and what it compiled for; both empty in a build without CUDA.
  m.attr("cuda_compiler") = PEERGRAPH_CUDA_COMPILER;
  m.attr("cuda_architectures") = PEERGRAPH_CUDA_ARCHITECTURES;
  peergraph::register_common(m);
  peergraph::register_memory(m);
  peergraph::register_main_thread(m);
  peergraph::register_gather_tables(m);
  peergraph::register_training(m);
  peergraph::register_remote_rows(m);
  peergraph::register_store(m);
  peergraph::register_sampling(m);
  peergraph::register_ahead(m);
  peergraph::register_walks(m);
  peergraph::register_aggregate(m);
  peergraph::register_dense(m);
  peergraph::register_fullgraph(m);
}
