// Errors that the main thread raises for another thread.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace peergraph {
namespace {

/// Runs in the main thread, with the GIL, between two instructions of Python. What the function
/// returns, if not None, is an exception: the main thread raises it there.
int raise_returned(void* function) {
  const auto call = py::reinterpret_steal<py::object>(static_cast<PyObject*>(function));
  const auto error = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(call.ptr()));
  if (!error) return -1;
  if (error.is_none()) return 0;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  return -1;
}

/// Returns whether the call is queued; the interpreter has room for few.
bool call_in_main_thread(const py::object& function) {
  if (Py_AddPendingCall(&raise_returned, function.ptr()) != 0) return false;
  function.inc_ref();
  return true;
}

}  // namespace

void register_main_thread(py::module_& m) {
  m.def("call_in_main_thread", &call_in_main_thread, py::arg("function"));
}

}  // namespace peergraph
