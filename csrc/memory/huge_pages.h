// Huge pages: random reads of memory are bound by the look-up of its pages, in a virtual machine
// even more. All of these ask; where the system has no huge pages, nothing changes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peergraph {

constexpr size_t kHugePageBytes = size_t{2} << 20;

/// As mmap of a file, shared and writable, but at a multiple of a huge page, without which the
/// system uses none. MAP_FAILED and errno on failure.
void* map_aligned(int fd, size_t bytes);

/// For a process's own memory that is not touched yet.
void ask_for_huge_pages(uintptr_t address, int64_t bytes);

/// For shared memory of map_aligned, best before it is written: what was not touched is allocated,
/// what was is copied. Linux 6.1 or later.
void make_huge_pages(uintptr_t address, int64_t bytes);

}  // namespace peergraph
