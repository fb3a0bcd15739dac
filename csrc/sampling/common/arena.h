// Memory of one sample. Small pieces of scratch memory share a buffer, as every allocation calls
// Python.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/allocate.h"

namespace peergraph {

class Arena {
 public:
  explicit Arena(const Allocate& allocate) : allocate_(allocate) {}

  /// Memory aligned to 256 bytes.
  void* take(int64_t num_bytes) {
    const int64_t wanted = (num_bytes + kAlign - 1) / kAlign * kAlign;
    if (wanted > kBufferBytes / 2) return allocate_(wanted);
    if (wanted > left_) {
      next_ = static_cast<char*>(allocate_(kBufferBytes + kAlign));
      next_ += -reinterpret_cast<uintptr_t>(next_) % kAlign;
      left_ = kBufferBytes;
    }
    char* piece = next_;
    next_ += wanted;
    left_ -= wanted;
    return piece;
  }

 private:
  static constexpr int64_t kAlign = 256;
  static constexpr int64_t kBufferBytes = int64_t{4} << 20;

  const Allocate& allocate_;
  char* next_ = nullptr;
  int64_t left_ = 0;
};

/// Typed memory of one sample: results, and scratch memory that ends with the sample.
class SampleMemory {
 protected:
  SampleMemory(const Allocate& allocate, Arena& arena) : allocate_(allocate), arena_(arena) {}

  /// Memory for a result; null for a count of 0.
  template <typename T>
  T* allocate(int64_t count, int64_t item_bytes = sizeof(T)) {
    return count == 0 ? nullptr : static_cast<T*>(allocate_(count * item_bytes));
  }

  /// Scratch memory; null for a count of 0.
  template <typename T>
  T* scratch(int64_t count, int64_t item_bytes = sizeof(T)) {
    return count == 0 ? nullptr : static_cast<T*>(arena_.take(count * item_bytes));
  }

  const Allocate& allocate_;
  Arena& arena_;
};

}  // namespace peergraph
