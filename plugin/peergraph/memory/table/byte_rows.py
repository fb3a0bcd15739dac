"""Converts rows of tables to bytes, and copies them from a GPU to the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from peergraph.memory.device.pinned_pipeline import PinnedPipeline

_CHUNK_BYTES = 32 << 20


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Returns contiguous rows [n, ...] as uint8 [n, row bytes]. The result shares their memory."""
    return rows.view(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)


def download_rows(
    out: torch.Tensor, device: torch.device, read: Callable[[int, torch.Tensor], object]
) -> None:
    """Copies rows from a GPU to `out` on the CPU, through pinned memory. Synchronises.

    Args:
        out: [n, ...], contiguous, with at least one element.
        device: the GPU.
        read: ``read(first, rows)`` writes the rows from `first` on to `rows`, uint8
            [rows of a chunk, row bytes] on the GPU, in the current stream.
    """
    out = as_bytes(out)

    def read_chunk(chunk: slice) -> torch.Tensor:
        size = (chunk.stop - chunk.start, out.shape[1])
        rows = torch.empty(size, dtype=torch.uint8, device=device)
        read(chunk.start, rows)
        return rows

    # Other threads and rows on disk may be using the process's pipeline.
    pipeline = PinnedPipeline(device, _CHUNK_BYTES)
    pipeline.download(out, torch.cuda.current_stream(device), read_chunk)
