#include "memory/host_region.h"

#include <sys/mman.h>

#include "common/check.h"

namespace peergraph {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

/// Maps at a multiple of a huge page, without which the kernel uses none.
void* map_aligned(int fd, size_t bytes) {
  void* room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return room;
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (aligned + bytes + 4095) / 4096 * 4096;
  if (aligned > begin) munmap(room, aligned - begin);
  if (end < begin + bytes + kHugePage) munmap(reinterpret_cast<void*>(end), begin + bytes + kHugePage - end);
  return mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
}

}  // namespace

uintptr_t map_shared(int fd, int64_t bytes, bool on_disk) {
  PG_CHECK_ARG(bytes > 0, "bytes must be positive");
  void* address = map_aligned(fd, static_cast<size_t>(bytes));
  if (address == MAP_FAILED) throw_errno("mmap of " + std::to_string(bytes) + " bytes");
  // Random row reads are bound by TLB misses in memory (kernels without huge shared pages refuse,
  // harmlessly), and of a disk they would read ahead what nobody wants.
  madvise(address, static_cast<size_t>(bytes), on_disk ? MADV_RANDOM : MADV_HUGEPAGE);
  return reinterpret_cast<uintptr_t>(address);
}

void unmap_shared(uintptr_t address, int64_t bytes) {
  if (munmap(reinterpret_cast<void*>(address), static_cast<size_t>(bytes)) != 0)
    throw_errno("munmap");
}

}  // namespace peergraph
