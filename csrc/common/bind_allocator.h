// Python's allocators, called by code that runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>

namespace peergraph {

/// An allocator that takes the GIL to call `allocate`, which must outlive it.
inline std::function<void*(int64_t)> with_gil(const pybind11::function& allocate) {
  return [&allocate](int64_t num_bytes) {
    pybind11::gil_scoped_acquire gil;
    return reinterpret_cast<void*>(allocate(num_bytes).cast<uintptr_t>());
  };
}

}  // namespace peergraph
