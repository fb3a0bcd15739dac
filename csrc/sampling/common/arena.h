// Memory of one sample. Pieces of scratch memory come from memory that the caller has allocated
// before, as every allocation calls Python and waits for its lock. What does not fit there is
// allocated; small pieces share a buffer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/allocate.h"

namespace peergraph {

class Arena {
 public:
  explicit Arena(const Allocate& allocate) : allocate_(allocate) {}

  /// memory: num_bytes bytes that the arena gives out first; may be null.
  Arena(const Allocate& allocate, void* memory, int64_t num_bytes) : allocate_(allocate) {
    set_buffer(static_cast<char*>(memory), num_bytes);
  }

  /// Memory aligned to 256 bytes.
  void* take(int64_t num_bytes) {
    const int64_t size = (num_bytes + kAlign - 1) / kAlign * kAlign;
    num_bytes_ += size;
    if (size > left_) {
      if (size > kBufferBytes / 2) return allocate_(size);
      set_buffer(static_cast<char*>(allocate_(kBufferBytes + kAlign)), kBufferBytes + kAlign);
    }
    char* piece = next_;
    next_ += size;
    left_ -= size;
    return piece;
  }

  /// The bytes of memory with which the same pieces would fit there.
  int64_t bytes_needed() const { return num_bytes_ + kAlign; }

 private:
  void set_buffer(char* memory, int64_t num_bytes) {
    const auto skipped = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(memory) % kAlign);
    next_ = memory + skipped;
    left_ = std::max<int64_t>(0, num_bytes - skipped);
  }

  static constexpr int64_t kAlign = 256;
  static constexpr int64_t kBufferBytes = int64_t{4} << 20;

  const Allocate& allocate_;
  char* next_ = nullptr;
  int64_t left_ = 0;
  int64_t num_bytes_ = 0;
};

/// Typed scratch memory, which ends with the sample.
class ScratchMemory {
 protected:
  explicit ScratchMemory(Arena& arena) : arena_(arena) {}

  /// Scratch memory; null for a count of 0.
  template <typename T>
  T* scratch(int64_t count, int64_t item_bytes = sizeof(T)) {
    return count == 0 ? nullptr : static_cast<T*>(arena_.take(count * item_bytes));
  }

  Arena& arena_;
};

/// Typed memory of one sample: results, and scratch memory.
class SampleMemory : protected ScratchMemory {
 protected:
  SampleMemory(const Allocate& allocate, Arena& arena)
      : ScratchMemory(arena), allocate_(allocate) {}

  /// Memory for a result; null for a count of 0.
  template <typename T>
  T* allocate(int64_t count, int64_t item_bytes = sizeof(T)) {
    return count == 0 ? nullptr : static_cast<T*>(allocate_(count * item_bytes));
  }

  const Allocate& allocate_;
};

}  // namespace peergraph
