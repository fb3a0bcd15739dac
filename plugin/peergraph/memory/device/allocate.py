"""Allocates outputs and scratch memory of operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from peergraph import _C

# NumPy's limit, too. For smaller sizes the allocator reuses memory that was touched before.
_WORTH_HUGE_PAGES = 4 << 20


def empty(shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``; large tensors on the CPU are in huge pages, where the system has them."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu" and made.nbytes >= _WORTH_HUGE_PAGES:
        _C.ask_for_huge_pages(made.data_ptr(), made.nbytes)
    return made


class Buffers:
    """Allocates memory for a function of the compiled module while it runs.

    The object is the callback `allocate(num_bytes) -> address`; :meth:`tensor` returns what was
    allocated at an address. The memory is kept as long as the object.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[int, torch.Tensor] = {}

    def __call__(self, num_bytes: int) -> int:
        buffer = empty(num_bytes, torch.uint8, self._device)
        address = buffer.data_ptr()
        self._buffers[address] = buffer
        return address

    def tensor(self, address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first `count` items of the buffer at `address`; empty for address 0."""
        if address == 0:
            return torch.empty(0, dtype=dtype, device=self._device)
        return self._buffers[address][: count * dtype.itemsize].view(dtype)
