// A dense tensor of the caller: address, element type and shape, without knowledge of torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/element.h"

namespace peergraph {

/// Element types of tensors; the first ones have the numbers of DType.
enum class ScalarType : int32_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kOther = 6
};

/// The memory belongs to the caller and must outlive the operation. Values are contiguous. Where a
/// tensor has more than kMaxDims dimensions, its last size is the product of the remaining sizes.
struct TensorRef {
  static constexpr int kMaxDims = 8;

  void* data = nullptr;
  ScalarType type = ScalarType::kOther;
  int item_bytes = 0;
  int num_dims = 0;
  std::array<int64_t, kMaxDims> sizes{};

  int64_t size(int dim) const {
    PG_CHECK_ARG(dim < num_dims, "a tensor has too few dimensions: expected more than " +
                                     std::to_string(dim) + ", got " + std::to_string(num_dims));
    return sizes[dim];
  }

  int64_t num_elements() const {
    int64_t count = 1;
    for (int dim = 0; dim < num_dims; ++dim) count *= sizes[dim];
    return count;
  }

  int64_t num_bytes() const { return num_elements() * item_bytes; }

  /// For features: float32, float64, float16 or bfloat16.
  DType dtype(const char* name) const {
    PG_CHECK_ARG(type <= ScalarType::kBfloat16,
                 std::string(name) + " must be float32, float64, float16 or bfloat16");
    return static_cast<DType>(type);
  }

  /// Bytes of an id: 4 for int32, 8 for int64.
  int id_bytes(const char* name) const {
    PG_CHECK_ARG(type == ScalarType::kInt32 || type == ScalarType::kInt64,
                 std::string(name) + " must be int32 or int64");
    return type == ScalarType::kInt32 ? 4 : 8;
  }

  /// The values of an int64 tensor of at least `least` elements.
  int64_t* int64_values(const char* name, int64_t least = 0) const {
    PG_CHECK_ARG(type == ScalarType::kInt64, std::string(name) + " must be int64");
    check_size(name, num_elements(), least, "elements");
    return static_cast<int64_t*>(data);
  }

  /// The values of an int32 tensor of at least `least` elements.
  int32_t* int32_values(const char* name, int64_t least = 0) const {
    PG_CHECK_ARG(type == ScalarType::kInt32, std::string(name) + " must be int32");
    check_size(name, num_elements(), least, "elements");
    return static_cast<int32_t*>(data);
  }

  /// The values of a tensor of at least `least` elements of `dtype`.
  void* values(const char* name, DType dtype, int64_t least) const {
    PG_CHECK_ARG(type == static_cast<ScalarType>(dtype),
                 std::string(name) + " must be " + name_of(dtype));
    check_size(name, num_elements(), least, "elements");
    return data;
  }

  /// The values of a tensor of at least `least` ids of `num_bytes` bytes.
  void* ids(const char* name, int num_bytes, int64_t least) const {
    PG_CHECK_ARG(id_bytes(name) == num_bytes,
                 std::string(name) + " must be int" + std::to_string(8 * num_bytes));
    check_size(name, num_elements(), least, "elements");
    return data;
  }

  /// The values of a uint8 or bool tensor of at least `least` elements.
  uint8_t* byte_values(const char* name, int64_t least) const {
    PG_CHECK_ARG(item_bytes == 1, std::string(name) + " must be uint8");
    check_size(name, num_elements(), least, "elements");
    return static_cast<uint8_t*>(data);
  }

  /// The memory of a tensor of any type that has at least `least` bytes.
  char* bytes(const char* name, int64_t least) const {
    check_size(name, num_bytes(), least, "bytes");
    return static_cast<char*>(data);
  }

 private:
  static const char* name_of(DType dtype) {
    constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16"};
    return kNames[static_cast<int>(dtype)];
  }

  static void check_size(const char* name, int64_t size, int64_t least, const char* unit) {
    PG_CHECK_ARG(size >= least, std::string(name) + " must have " + std::to_string(least) + " " +
                                    unit + ", got " + std::to_string(size));
  }
};

}  // namespace peergraph
