// Helpers of all areas' bindings.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "common/allocate.h"

namespace peergraph {

/// Lets other threads of Python run during the bound function.
using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;

/// The memory at an address that came from Python.
template <typename T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

/// An allocator that takes the GIL to call the Python function `allocate`, which must outlive the
/// allocator.
inline Allocate with_gil(const pybind11::function& allocate) {
  return [&allocate](int64_t num_bytes) {
    pybind11::gil_scoped_acquire gil;
    return reinterpret_cast<void*>(allocate(num_bytes).cast<uintptr_t>());
  };
}

}  // namespace peergraph
