#include "memory/host_region.h"

#include <sys/mman.h>

#include "common/check.h"
#include "memory/huge_pages.h"

namespace peergraph {

uintptr_t map_shared(int fd, int64_t bytes, bool on_disk) {
  PG_CHECK_ARG(bytes > 0, "bytes must be positive");
  void* address = map_aligned(fd, static_cast<size_t>(bytes));
  if (address == MAP_FAILED) throw_errno("mmap of " + std::to_string(bytes) + " bytes");
  // In memory, random reads of rows are bound by TLB misses, which huge pages reduce (kernels
  // without huge shared pages refuse; that is harmless). On disk, read-ahead would be useless.
  madvise(address, static_cast<size_t>(bytes), on_disk ? MADV_RANDOM : MADV_HUGEPAGE);
  return reinterpret_cast<uintptr_t>(address);
}

void unmap_shared(uintptr_t address, int64_t bytes) {
  if (munmap(reinterpret_cast<void*>(address), static_cast<size_t>(bytes)) != 0)
    throw_errno("munmap");
}

}  // namespace peergraph
