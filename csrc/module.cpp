// The compiled module: build facts, and one registration per area.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace peergraph {
void register_memory(py::module_& m);
void register_store(py::module_& m);
void register_sampling(py::module_& m);
}  // namespace peergraph

PYBIND11_MODULE(_C, m) {
#ifdef PEERGRAPH_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
  m.attr("compiler") = __VERSION__;
  peergraph::register_memory(m);
  peergraph::register_store(m);
  peergraph::register_sampling(m);
}
