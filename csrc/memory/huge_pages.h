// Huge pages: random reads of memory are bound by page table lookups, in a virtual machine even
// more. All functions are requests: where the system has no huge pages, they change nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace peergraph {

constexpr size_t kHugePageBytes = size_t{2} << 20;

/// As mmap of a file, shared and writable, but at a multiple of a huge page, without which the
/// system uses none. MAP_FAILED and errno on failure.
void* map_aligned(int fd, size_t bytes);

/// Requests huge pages for private memory that has not been touched.
void ask_for_huge_pages(uintptr_t address, int64_t bytes);

/// Maps all pages of private memory at once, in `num_threads` threads. Pages that were not written
/// before contain zeros. A lack of memory is not reported.
void populate_pages(uintptr_t address, int64_t bytes, int num_threads);

/// Makes huge pages of shared memory from map_aligned, best before it is written: untouched pages
/// are allocated, touched pages are copied. `address` is a multiple of a huge page. Linux 6.1 or
/// later.
void make_huge_pages(uintptr_t address, int64_t bytes, int num_threads);

}  // namespace peergraph
