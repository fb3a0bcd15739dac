// Edge indices as Python gave them: a slice of the first edges has two rows apart from each other.
#pragma once

#include "common/bind.h"

namespace peergraph {

struct BoundEdges {
  TensorRef tensor;  // [2, edges]; the values of each row are contiguous
  int64_t stride = 0;

  int64_t num_edges() const { return tensor.sizes[1]; }
  const void* row(int64_t number) const {
    return static_cast<const char*>(tensor.data) + number * stride * tensor.item_bytes;
  }
};

}  // namespace peergraph

namespace pybind11::detail {

template <>
struct type_caster<peergraph::BoundEdges> {
  PYBIND11_TYPE_CASTER(peergraph::BoundEdges, const_name("torch.Tensor"));

  bool load(handle source, bool) {
    static const handle kStride = PyUnicode_InternFromString("stride");
    if (!peergraph::read_tensor(source, value.tensor)) return false;
    if (value.tensor.num_dims != 2 || value.tensor.sizes[0] != 2)
      throw value_error("an edge index must be [2, edges]");
    const auto strides = reinterpret_borrow<tuple>(peergraph::call_if_defined(source, kStride));
    if (value.tensor.sizes[1] > 1 && strides[1].cast<int64_t>() != 1)
      throw value_error("rows of an edge index are not contiguous: call contiguous() first");
    value.stride = strides[0].cast<int64_t>();
    return true;
  }
};

}  // namespace pybind11::detail
