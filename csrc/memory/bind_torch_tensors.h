// Tensors of torch that C++ has allocated, as Python's.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "common/torch_memory.h"

namespace peergraph {

/// torch's function that makes Python's tensors of handles, and deletes the handles.
using AdoptTensors = pybind11::typing::Callable<pybind11::typing::List<pybind11::object>(
    pybind11::typing::List<pybind11::object>)>;

/// Appends a handle of the tensor, which the handle then owns.
inline void append_handle(pybind11::list& handles, TorchTensor& tensor) {
  handles.append(pybind11::capsule(tensor.release(), static_cast<const char*>(nullptr)));
}

}  // namespace peergraph
