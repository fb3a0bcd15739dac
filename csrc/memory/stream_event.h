// Events in the work of a GPU's streams.
#pragma once

#include <cstdint>

namespace peergraph {

#ifdef PEERGRAPH_CUDA
/// An event, without a time; a host that waits for it sleeps.
class StreamEvent {
 public:
  explicit StreamEvent(int device);
  ~StreamEvent();
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  /// Records the event after all work that a stream has got so far.
  void record(uintptr_t stream);

  /// Lets the host wait for the event; returns at once if it was never recorded.
  void synchronize() const;

  /// Lets later work of a stream wait for the event.
  void block(uintptr_t stream) const;

 private:
  int device_;
  void* event_ = nullptr;
};

/// Prepares a new thread for work on a GPU, also while another thread captures a CUDA graph.
void begin_gpu_thread(int device);
#endif

}  // namespace peergraph
