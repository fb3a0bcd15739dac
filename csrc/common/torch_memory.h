// Tensors from torch's allocator, for threads that do not take Python's lock. The functions are
// those of torch's C interface (aoti_torch/c/shim.h), by address: no version of torch is linked.
#pragma once

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace peergraph {

/// Each returns 0, or another number for an error.
struct TorchFunctions {
  using Empty = int32_t (*)(int64_t num_dims, const int64_t* sizes, const int64_t* strides,
                            int32_t dtype, int32_t device_type, int32_t device, void** tensor);
  using DataPointer = int32_t (*)(void* tensor, void** data);
  using Delete = int32_t (*)(void* object);
  using SetStream = int32_t (*)(void* stream, int32_t device, void** guard);

  Empty empty = nullptr;
  DataPointer data_pointer = nullptr;
  Delete delete_tensor = nullptr;
  SetStream set_stream = nullptr;  // null where torch has no CUDA
  Delete reset_stream = nullptr;
  // torch's numbers of the type of device and of dtypes.
  int32_t device_type = 0;
  int32_t uint8 = 0, int32 = 0, int64 = 0;
};

/// A tensor of torch; the memory is torch's, on the current stream of the thread that makes it.
class TorchTensor {
 public:
  TorchTensor() = default;

  /// Throws std::bad_alloc if torch has no memory for it.
  TorchTensor(const TorchFunctions& torch, const std::vector<int64_t>& sizes, int32_t dtype,
              int32_t device)
      : torch_(&torch) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t dim = sizes.size(); dim-- > 1;)
      strides[dim - 1] = strides[dim] * (sizes[dim] > 0 ? sizes[dim] : 1);
    if (torch.empty(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                    torch.device_type, device, &tensor_) != 0)
      throw std::bad_alloc();
  }

  TorchTensor(TorchTensor&& other) noexcept { swap(other); }
  TorchTensor& operator=(TorchTensor&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TorchTensor() {
    if (tensor_ != nullptr) torch_->delete_tensor(tensor_);
  }

  explicit operator bool() const { return tensor_ != nullptr; }

  /// The memory; null if there is no tensor.
  void* data() const {
    void* data = nullptr;
    if (tensor_ != nullptr && torch_->data_pointer(tensor_, &data) != 0) throw std::bad_alloc();
    return data;
  }

  /// Releases the tensor, which the caller then owns.
  void* release() { return std::exchange(tensor_, nullptr); }

 private:
  void swap(TorchTensor& other) noexcept {
    std::swap(torch_, other.torch_);
    std::swap(tensor_, other.tensor_);
  }

  const TorchFunctions* torch_ = nullptr;
  void* tensor_ = nullptr;
};

/// Makes a stream the current one of the calling thread, within a scope; does nothing on the CPU.
class TorchStream {
 public:
  TorchStream(const TorchFunctions& torch, int32_t device, uintptr_t stream) : torch_(torch) {
    if (device >= 0 && torch.set_stream(reinterpret_cast<void*>(stream), device, &guard_) != 0)
      throw std::bad_alloc();
  }
  ~TorchStream() {
    if (guard_ != nullptr) torch_.reset_stream(guard_);
  }
  TorchStream(const TorchStream&) = delete;
  TorchStream& operator=(const TorchStream&) = delete;

 private:
  const TorchFunctions& torch_;
  void* guard_ = nullptr;
};

}  // namespace peergraph
