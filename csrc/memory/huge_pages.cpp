#include "memory/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/parallel.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace peergraph {
namespace {

uintptr_t round_up(uintptr_t address, size_t unit) { return (address + unit - 1) / unit * unit; }

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void unmap_between(uintptr_t begin, uintptr_t end) {
  if (begin < end) munmap(reinterpret_cast<void*>(begin), end - begin);
}

}  // namespace

void* map_aligned(int fd, size_t bytes) {
  const size_t room = round_up(bytes, page_bytes()) + kHugePageBytes;
  void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t aligned = round_up(begin, kHugePageBytes);
  void* mapped = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, room);
    errno = error;
    return MAP_FAILED;
  }
  unmap_between(begin, aligned);
  unmap_between(round_up(aligned + bytes, page_bytes()), begin + room);
  return mapped;
}

void ask_for_huge_pages(uintptr_t address, int64_t bytes) {
  const uintptr_t begin = round_up(address, kHugePageBytes);
  const uintptr_t end = (address + static_cast<size_t>(bytes)) / kHugePageBytes * kHugePageBytes;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void populate_pages(uintptr_t address, int64_t bytes, int num_threads) {
  // Pieces are small, so that all threads have work until the end.
  constexpr int64_t kPiece = 16 * static_cast<int64_t>(kHugePageBytes);
  const auto page = static_cast<int64_t>(page_bytes());
  parallel_pieces((bytes + kPiece - 1) / kPiece, num_threads, [&](int64_t piece) {
    const int64_t begin = piece * kPiece;
    const int64_t end = std::min(bytes, begin + kPiece);
    void* first = reinterpret_cast<void*>(address + begin);
    if (madvise(first, static_cast<size_t>(end - begin), MADV_POPULATE_WRITE) == 0) return;
    // Linux before 5.14, or a part of a page: writing a byte's own value maps its page.
    for (int64_t offset = begin; offset < end; offset += page) {
      auto* byte = reinterpret_cast<volatile char*>(address + offset);
      *byte = *byte;
    }
  });
}

void make_huge_pages(uintptr_t address, int64_t bytes, int num_threads) {
  const int64_t pages = bytes / static_cast<int64_t>(kHugePageBytes);
  parallel_for(pages, 16, num_threads, [&](int64_t begin, int64_t end) {
    const uintptr_t first = address + static_cast<size_t>(begin) * kHugePageBytes;
    const size_t size = static_cast<size_t>(end - begin) * kHugePageBytes;
    // Only pages that are mapped already are made huge: reading maps them.
    for (size_t offset = 0; offset < size; offset += kHugePageBytes)
      static_cast<void>(*reinterpret_cast<const volatile char*>(first + offset));
    madvise(reinterpret_cast<void*>(first), size, MADV_COLLAPSE);
  });
}

}  // namespace peergraph
