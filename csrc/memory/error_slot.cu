#include <atomic>
#include <map>
#include <mutex>

#include "common/cuda_check.cuh"
#include "memory/error_slot.h"

namespace peergraph {
namespace {

/// The part of a slot in device memory, in one allocation.
struct DeviceWords {
  int64_t best_position;
  int32_t lock;
};

std::mutex mutex;
std::map<int, ErrorSlot> slots;
std::atomic<int64_t> raised_writes{0};

void reset(const ErrorSlot& slot) {
  const DeviceWords fresh{INT64_MAX, 0};
  slot.report->pending = 0;
  PG_CUDA_CHECK(cudaMemcpy(slot.best_position, &fresh, sizeof(fresh), cudaMemcpyHostToDevice));
  // A copy from pageable memory may still be in progress, and streams do not wait for it.
  PG_CUDA_CHECK(cudaDeviceSynchronize());
}

ErrorSlot make_slot(int device) {
  DeviceGuard guard(device);
  DeviceWords* words = nullptr;
  PG_CUDA_CHECK(cudaMalloc(&words, sizeof(DeviceWords)));
  ErrorReport* report = nullptr;
  PG_CUDA_CHECK(
      cudaHostAlloc(&report, sizeof(ErrorReport), cudaHostAllocPortable | cudaHostAllocMapped));
  ErrorSlot slot{&words->lock, &words->best_position, report};
  reset(slot);
  return slot;
}

}  // namespace

ErrorSlot error_slot(int device) {
  const std::lock_guard<std::mutex> hold(mutex);
  const auto found = slots.find(device);
  if (found != slots.end()) return found->second;
  return slots.emplace(device, make_slot(device)).first->second;
}

void raise_pending(int device) {
  const ErrorSlot slot = error_slot(device);
  const volatile int32_t* pending = &slot.report->pending;
  if (*pending == 0) return;
  DeviceGuard guard(device);
  PG_CUDA_CHECK(cudaDeviceSynchronize());
  const ErrorReport report = *slot.report;
  reset(slot);
  if (is_write(report.what)) ++raised_writes;
  throw_bad_id(report.what, report.position, report.id, report.limit);
}

int64_t num_raised_writes() { return raised_writes; }

}  // namespace peergraph
