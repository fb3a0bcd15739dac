"""Checks the rows that Table.load takes, and copies them to the device in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import peergraph._C as _C
from peergraph.memory.device.pinned_pipeline import PinnedPipeline
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.table.row_arguments import range_of_rows

Source = torch.Tensor | np.ndarray[Any, Any]


def check_source(
    source: Source,
    start: int,
    chunk_bytes: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Source:
    """Checks the arguments of Table.load, for a table of this shape and dtype.

    Returns the source as it is to be read.
    """
    if not isinstance(source, torch.Tensor | np.ndarray):
        raise TypeError(f"source must be a tensor or an array, got {type(source).__name__}")
    if isinstance(source, torch.Tensor):
        source = plain("source", source)
    source_dtype = source.dtype if isinstance(source, torch.Tensor) else _torch_dtype(source.dtype)
    if source_dtype != dtype:
        raise ValueError(f"source must be {dtype}, got {source.dtype}")
    if source.ndim == 0 or tuple(source.shape[1:]) != shape[1:]:
        raise ValueError(
            f"source must have shape [n, {', '.join(map(str, shape[1:]))}], "
            f"got {tuple(source.shape)}"
        )
    range_of_rows(start, start + len(source), shape[0])
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, got {chunk_bytes}")
    return source


def chunks_on_device(
    source: Source, device: torch.device, chunk_bytes: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yields `source` in chunks. A chunk is a slice, and its rows, contiguous, on the device.

    The rows are valid until the next chunk is requested.

    Args:
        source: the rows, of at least one byte each.
        device: the device of the chunks. Copies from the CPU to a GPU go through two pinned
            buffers, one of which the CPU fills while the GPU copies the other; pinned memory is
            copied as it is.
        chunk_bytes: the size of a chunk, which has at least one row.
    """
    row_bytes = source.nbytes // max(1, len(source))
    if len(source) == 0:
        return
    if device.type == "cuda" and not (isinstance(source, torch.Tensor) and _can_copy(source)):

        def fill(part: slice, buffer: torch.Tensor) -> None:
            rows = source[part]
            if isinstance(rows, torch.Tensor):
                buffer.view(rows.dtype).view(rows.shape).copy_(rows)
            else:
                np.copyto(np.ndarray(rows.shape, rows.dtype, buffer.numpy().data), rows)

        # Writes to rows on disk use the process's pipeline at the same time.
        pipeline = PinnedPipeline(device, chunk_bytes)
        stream = torch.cuda.current_stream(device)
        for part, rows in pipeline.upload(len(source), row_bytes, stream, fill):
            yield part, rows
        return
    step = max(1, chunk_bytes // max(1, row_bytes))
    for begin in range(0, len(source), step):
        part = slice(begin, min(len(source), begin + step))
        chunk = source[part]
        if isinstance(chunk, torch.Tensor):
            # The caller waits for the copy before the rows may change.
            yield part, chunk.to(device, non_blocking=True).contiguous()
        else:
            yield part, _bytes_of(np.ascontiguousarray(chunk))


def _can_copy(source: torch.Tensor) -> bool:
    """Whether a GPU can copy from the memory of a tensor."""
    return source.is_cuda or (source.is_contiguous() and source.is_pinned())


def _bytes_of(rows: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns the memory of contiguous rows as uint8. Rows may be read-only and of any dtype."""
    memory: torch.Tensor = torch.utils.dlpack.from_dlpack(
        _C.bytes_as_dlpack(rows.ctypes.data, rows.nbytes, -1, rows)
    )
    return memory


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        return None
