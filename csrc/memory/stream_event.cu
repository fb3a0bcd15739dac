#include "common/cuda_check.cuh"
#include "memory/capture_mode.h"
#include "memory/stream_event.h"

namespace peergraph {
namespace {

cudaStream_t stream_at(uintptr_t address) { return reinterpret_cast<cudaStream_t>(address); }

cudaEvent_t event_at(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

StreamEvent::StreamEvent(int device) : device_(device) {
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  PG_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  event_ = event;
}

StreamEvent::~StreamEvent() { cudaEventDestroy(event_at(event_)); }

void StreamEvent::record(uintptr_t stream) {
  const DeviceGuard guard(device_);
  PG_CUDA_CHECK(cudaEventRecord(event_at(event_), stream_at(stream)));
}

void StreamEvent::synchronize() const { PG_CUDA_CHECK(cudaEventSynchronize(event_at(event_))); }

void StreamEvent::block(uintptr_t stream) const {
  const DeviceGuard guard(device_);
  PG_CUDA_CHECK(cudaStreamWaitEvent(stream_at(stream), event_at(event_), 0));
}

void begin_gpu_thread(int device) {
  PG_CUDA_CHECK(cudaSetDevice(device));
  use_thread_local_capture_mode();
}

}  // namespace peergraph
