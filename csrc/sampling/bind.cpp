// Python face of the sampling area.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace peergraph {

void register_sampling(py::module_&) {}

}  // namespace peergraph
