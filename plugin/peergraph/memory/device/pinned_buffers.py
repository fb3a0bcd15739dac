"""Pinned memory through which rows go between CPU threads and a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache

import torch

# Of each of the two buffers: so much that starting the threads that fill it does not count.
_BUFFER_BYTES = 32 << 20


class PinnedBuffers:
    """Two buffers in turn: the CPU works on one while the other's copy is under way.

    Kept, since the GPU may still read a buffer when the call that filled it has returned.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._buffers: list[torch.Tensor] = []
        self._copied: list[torch.cuda.Event] = []

    def pieces(
        self, rows: int, row_bytes: int, stream: torch.cuda.Stream
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Pieces of `rows` rows, each with a buffer [its rows, row_bytes] uint8 that is free.

        A buffer is free again when all is done that was put into `stream` before the next piece
        was asked for. One thread at a time gets pieces.
        """
        with self._lock:
            self._make(row_bytes)
            step = self._buffers[0].numel() // row_bytes
            for turn, begin in enumerate(range(0, rows, step)):
                count = min(step, rows - begin)
                buffer, copied = self._buffers[turn % 2], self._copied[turn % 2]
                copied.synchronize()
                try:
                    yield slice(begin, begin + count), buffer[: count * row_bytes].view(count, -1)
                finally:  # Copies may be under way also where the piece failed.
                    copied.record(stream)

    def _make(self, row_bytes: int) -> None:
        """Makes the buffers, if there are none yet for rows so wide."""
        if self._buffers and self._buffers[0].numel() >= row_bytes:
            return
        for copied in self._copied:
            copied.synchronize()
        size, pin = max(_BUFFER_BYTES, row_bytes), self._device.type == "cuda"
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, pin_memory=pin, device="cpu") for _ in range(2)
        ]
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]


@cache
def pinned_buffers(device: torch.device) -> PinnedBuffers:
    """Those of this process for a GPU; they take memory when they are first used."""
    return PinnedBuffers(device)
