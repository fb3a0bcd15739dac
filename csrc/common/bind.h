// Helpers of all areas' bindings.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/allocate.h"
#include "common/launch.h"
#include "common/tensor_ref.h"

namespace peergraph {

/// Lets other threads of Python run during the bound function.
using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;

/// The memory at an address that came from Python.
template <typename T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

/// The memory of a tensor; null for None.
template <typename T = void>
T* pointer(const std::optional<TensorRef>& tensor) {
  return tensor ? static_cast<T*>(tensor->data) : nullptr;
}

template <typename T = void>
T* pointer(const TensorRef& tensor) {
  return static_cast<T*>(tensor.data);
}

/// The values of an int64 tensor of at least `least` elements; null for None.
inline int64_t* int64_values(const std::optional<TensorRef>& tensor, const char* name,
                             int64_t least = 0) {
  return tensor ? tensor->int64_values(name, least) : nullptr;
}

/// An allocator that takes the GIL to call the Python function `allocate`, which must outlive the
/// allocator.
inline Allocate with_gil(const pybind11::function& allocate) {
  return [&allocate](int64_t num_bytes) {
    pybind11::gil_scoped_acquire gil;
    return reinterpret_cast<void*>(allocate(num_bytes).cast<uintptr_t>());
  };
}

/// Raises TypeError or ValueError for a tensor whose values are not simply what its memory holds.
/// Callers in Python convert the tensors that users pass (plain_tensor.py), and name the argument.
inline void refuse_tensor(pybind11::handle tensor, const char* what) {
  const auto type = pybind11::str(pybind11::type::handle_of(tensor).attr("__name__"));
  throw pybind11::type_error("a tensor (" + type.cast<std::string>() + ") " + what);
}

/// Names of what is read of a tensor. A call with names that are made anew takes twice the time.
struct TensorAttributes {
  pybind11::handle is_conj = PyUnicode_InternFromString("is_conj");
  pybind11::handle is_neg = PyUnicode_InternFromString("is_neg");
  pybind11::handle data_ptr = PyUnicode_InternFromString("data_ptr");
  pybind11::handle dtype = PyUnicode_InternFromString("dtype");
  pybind11::handle shape = PyUnicode_InternFromString("shape");
};

/// The result of a method without arguments; no object if there is no such method.
inline pybind11::object call_if_defined(pybind11::handle source, pybind11::handle name) {
  PyObject* const result = PyObject_CallMethodNoArgs(source.ptr(), name.ptr());
  if (result == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw pybind11::error_already_set();
    PyErr_Clear();
  }
  return pybind11::reinterpret_steal<pybind11::object>(result);
}

/// The element type of a dtype of torch.
struct Element {
  ScalarType type;
  int bytes;
};

/// Dtypes of torch live as long as the process.
inline Element element_of(pybind11::handle dtype) {
  static auto* const elements = new std::unordered_map<PyObject*, Element>();
  const auto entry = elements->find(dtype.ptr());
  if (entry != elements->end()) return entry->second;
  static const std::unordered_map<std::string, ScalarType> kByName = {
      {"torch.float32", ScalarType::kFloat32}, {"torch.float64", ScalarType::kFloat64},
      {"torch.float16", ScalarType::kFloat16}, {"torch.bfloat16", ScalarType::kBfloat16},
      {"torch.int32", ScalarType::kInt32},     {"torch.int64", ScalarType::kInt64}};
  const auto name = kByName.find(pybind11::str(dtype).cast<std::string>());
  const Element element{name == kByName.end() ? ScalarType::kOther : name->second,
                        dtype.attr("itemsize").cast<int>()};
  elements->emplace(dtype.ptr(), element);
  return element;
}

/// Reads a tensor with any strides; returns false for what is no tensor.
inline bool read_tensor(pybind11::handle source, TensorRef& value) {
  static const TensorAttributes kNames;
  const pybind11::object address = call_if_defined(source, kNames.data_ptr);
  if (!address) return false;
  value.data = reinterpret_cast<void*>(address.cast<uintptr_t>());
  if (pybind11::object(source.attr(kNames.is_neg)()).ptr() == Py_True)
    refuse_tensor(source, "is a negative view: call resolve_neg() first");
  const Element element = element_of(source.attr(kNames.dtype));
  value.type = element.type;
  value.item_bytes = element.bytes;
  const auto shape =
      pybind11::reinterpret_borrow<pybind11::tuple>(pybind11::object(source.attr(kNames.shape)));
  constexpr size_t kMaxDims = TensorRef::kMaxDims;
  value.num_dims = static_cast<int>(std::min(shape.size(), kMaxDims));
  // The last of many dimensions stands for itself and all that follow.
  value.sizes.fill(1);
  for (size_t dim = 0; dim < shape.size(); ++dim)
    value.sizes[std::min(dim, kMaxDims - 1)] *= shape[dim].cast<int64_t>();
  if (value.data == nullptr && value.num_elements() > 0)
    refuse_tensor(source, "has no memory of its own");
  // No type that is known is complex.
  if (value.type == ScalarType::kOther &&
      pybind11::object(source.attr(kNames.is_conj)()).ptr() == Py_True)
    refuse_tensor(source, "is a conjugate view: call resolve_conj() first");
  return true;
}

}  // namespace peergraph

namespace pybind11::detail {

/// Tensors of torch become TensorRef where a bound function takes one.
template <>
struct type_caster<peergraph::TensorRef> {
  PYBIND11_TYPE_CASTER(peergraph::TensorRef, const_name("torch.Tensor"));

  bool load(handle source, bool) {
    static const handle kIsContiguous = PyUnicode_InternFromString("is_contiguous");
    const object contiguous = peergraph::call_if_defined(source, kIsContiguous);
    if (!contiguous) return false;
    if (contiguous.ptr() != Py_True)
      throw value_error("a tensor is not contiguous in memory: call contiguous() first");
    return peergraph::read_tensor(source, value);
  }
};

}  // namespace pybind11::detail
