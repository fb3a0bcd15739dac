"""Double-buffered copies between the CPU and a GPU through pinned memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache

import torch

# The size of each of the two buffers: large enough that starting the threads that fill a buffer
# costs little compared with the copy.
_BUFFER_BYTES = 32 << 20


class PinnedPipeline:
    """Two pinned buffers, used alternately: the CPU works on one while the GPU copies the other.

    The buffers are kept between calls, since the GPU may still read a buffer when the call that
    filled it has returned. One thread at a time uses a pipeline; others wait.

    Args:
        device: the GPU. On the CPU buffers are not pinned.
        buffer_bytes: the size of each buffer; a buffer holds at least one row.
    """

    def __init__(self, device: torch.device, buffer_bytes: int | None = None) -> None:
        self._device = device
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._buffers: list[torch.Tensor] = []
        self._copied: list[torch.cuda.Event] = []

    def pieces(
        self, rows: int, row_bytes: int, stream: torch.cuda.Stream
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Splits `rows` rows into pieces, each with a free buffer [rows of the piece, row_bytes].

        A buffer is uint8 and belongs to the caller until the next piece is requested. It is used
        again once the GPU has finished what was queued in `stream` by then.
        """
        with self._lock:
            self._allocate(rows, row_bytes)
            step = self._buffers[0].numel() // row_bytes
            for turn, begin in enumerate(range(0, rows, step)):
                count = min(step, rows - begin)
                buffer, copied = self._buffers[turn % 2], self._copied[turn % 2]
                copied.synchronize()
                try:
                    yield slice(begin, begin + count), buffer[: count * row_bytes].view(count, -1)
                finally:  # Copies may be in progress even if the piece failed.
                    copied.record(stream)

    def upload(
        self,
        rows: int,
        row_bytes: int,
        stream: torch.cuda.Stream,
        fill: Callable[[slice, torch.Tensor], object],
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Copies rows from the CPU to the GPU; yields each piece as a tensor on the GPU.

        Args:
            rows, row_bytes: the rows, and the bytes of each.
            stream: the current stream of the GPU, in which the pieces are copied.
            fill: ``fill(part, buffer)`` writes the rows of the slice `part` to the buffer, uint8
                [rows of the piece, row_bytes]. It runs while the GPU copies the piece before.
        """
        for part, buffer in self.pieces(rows, row_bytes, stream):
            fill(part, buffer)
            yield part, buffer.to(self._device, non_blocking=True)

    def download(
        self,
        out: torch.Tensor,
        stream: torch.cuda.Stream,
        read: Callable[[slice], torch.Tensor],
    ) -> None:
        """Copies rows from the GPU to `out` on the CPU. Waits for the last copy.

        Args:
            out: uint8 [rows, row bytes], contiguous.
            stream: the current stream of the GPU, in which the pieces are copied.
            read: ``read(part)`` returns the rows of the slice `part` on the GPU, uint8 [rows of the
                piece, row bytes]. The GPU works on them while the CPU copies the piece before.
        """
        last: tuple[slice, torch.Tensor, torch.cuda.Event] | None = None
        for part, buffer in self.pieces(len(out), out.shape[1], stream):
            buffer.copy_(read(part), non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
            if last is not None:
                _finish(out, *last)
            last = (part, buffer, copied)
        if last is not None:
            _finish(out, *last)

    def _allocate(self, rows: int, row_bytes: int) -> None:
        """Allocates the buffers, unless there are buffers that hold a row of this size."""
        if self._buffers and self._buffers[0].numel() >= row_bytes:
            return
        for copied in self._copied:
            copied.synchronize()
        if self._buffer_bytes is None:
            size = max(_BUFFER_BYTES, row_bytes)
        else:
            size = max(1, min(self._buffer_bytes // row_bytes, rows)) * row_bytes
        pin = self._device.type == "cuda"
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, pin_memory=pin, device="cpu") for _ in range(2)
        ]
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]


def _finish(out: torch.Tensor, part: slice, buffer: torch.Tensor, copied: torch.cuda.Event) -> None:
    copied.synchronize()
    out[part] = buffer


@cache
def pinned_pipeline(device: torch.device) -> PinnedPipeline:
    """Returns the process's pipeline for a GPU; it allocates memory at its first use."""
    return PinnedPipeline(device)
