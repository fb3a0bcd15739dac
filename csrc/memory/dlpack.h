// The part of DLPack's C interface (https://dmlc.github.io/dlpack/latest/c_api.html) that makes
// memory a tensor of any framework without a copy.
#pragma once

#include <cstdint>

namespace peergraph {

struct DlDevice {
  int32_t type;  // 1: CPU, 2: CUDA
  int32_t id;
};

struct DlDataType {
  uint8_t code;  // 1: unsigned integer
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: dense
  uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};

}  // namespace peergraph
