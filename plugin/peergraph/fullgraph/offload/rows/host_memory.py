"""Host memory for rows: pinned where ranks compute on GPUs, in huge pages where there are any."""

from __future__ import annotations

import mmap
import os
import weakref

import torch
import torch.utils.dlpack
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.group.process import keep_gpu_objects_from_forked_children


class HostMapping:
    """Anonymous memory of this process, which the kernels of a GPU reach, too.

    Args:
        num_bytes: at least 1.
        device: for whose copies the memory is pinned; on the CPU memory is not pinned.
        num_threads: that map the pages of pinned memory.

    Raises:
        MemoryError: the system does not give the memory, or the driver does not pin it.
    """

    def __init__(self, num_bytes: int, device: torch.device, num_threads: int) -> None:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._mapped = mmap.mmap(-1, num_bytes, flags=flags)
        except OSError as error:
            raise MemoryError(f"{num_bytes} bytes of host memory: {error.strerror}") from error
        content = torch.frombuffer(self._mapped, dtype=torch.uint8)
        self.address = content.data_ptr()
        self.num_bytes = num_bytes
        _C.ask_for_huge_pages(self.address, num_bytes)
        if device.type != "cuda":
            return
        # The driver would map one page after the other.
        _C.populate_pages(self.address, num_bytes, num_threads)
        keep_gpu_objects_from_forked_children()
        try:
            _C.register_host(device.index, self.address, num_bytes)
        except RuntimeError as error:
            raise MemoryError(
                f"{num_bytes} bytes of host memory for rows cannot be pinned: {error}"
            ) from error
        # Called before the mapping goes, which is an attribute.
        finalizer = weakref.finalize(self, _unpin, os.getpid(), device.index, self.address)
        finalizer.atexit = False

    def tensor(self) -> Tensor:
        """Returns the bytes, [num_bytes] uint8; the tensor keeps the mapping."""
        return torch.utils.dlpack.from_dlpack(
            _C.bytes_as_dlpack(self.address, self.num_bytes, -1, self)
        )


def _unpin(pid: int, device: int, address: int) -> None:
    if os.getpid() == pid:
        _C.unregister_host(device, address)
