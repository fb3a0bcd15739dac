"""Moves what a process has allocated into huge pages, where the kernel can (Linux 6.1).

A fork copies one entry of the page table for 2 MiB then, and not 512. The process that forks the
tests' ranks imports this module last: starting and ending a rank takes less than half the time.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_SIZE = 1 << 21
_MADV_COLLAPSE = 25  # of <linux/mman.h>


def _regions() -> list[tuple[int, int]]:
    """Begin and end of the private memory without files that may be written, in whole pages."""
    regions = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode, *_ = line.split()
        if access.startswith("rw") and access.endswith("p") and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            regions.append((-(-begin // _SIZE) * _SIZE, end // _SIZE * _SIZE))
    return [(begin, end) for begin, end in regions if begin < end]


def _collapse() -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, end in _regions():
        if madvise(begin, end - begin, mmap.MADV_HUGEPAGE) != 0:
            return  # a kernel without huge pages
        for address in range(begin, end, _SIZE):
            madvise(address, _SIZE, _MADV_COLLAPSE)  # fails where too little of it is in use


_collapse()
