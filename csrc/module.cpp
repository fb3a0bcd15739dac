// The compiled module: build facts, and one registration per area.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace peergraph {
void register_memory(py::module_& m);
void register_training(py::module_& m);
void register_store(py::module_& m);
void register_sampling(py::module_& m);
void register_walks(py::module_& m);
void register_aggregate(py::module_& m);
}  // namespace peergraph

PYBIND11_MODULE(_C, m) {
#ifdef PEERGRAPH_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
  // Why there is no CUDA part; empty where there is one.
  m.attr("no_cuda") = PEERGRAPH_NO_CUDA;
  m.attr("compiler") = PEERGRAPH_COMPILER;
  // nvcc's version and what it compiled for; both empty in a build without CUDA.
  m.attr("cuda_compiler") = PEERGRAPH_CUDA_COMPILER;
  m.attr("cuda_architectures") = PEERGRAPH_CUDA_ARCHITECTURES;
  peergraph::register_memory(m);
  peergraph::register_training(m);
  peergraph::register_store(m);
  peergraph::register_sampling(m);
  peergraph::register_walks(m);
  peergraph::register_aggregate(m);
}
