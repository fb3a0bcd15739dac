"""Whole-table transfers in chunks: loading is scattering, reading is gathering, of id ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peergraph.memory.table.id_list import out_tensor
from peergraph.progress import progress_bar

if TYPE_CHECKING:
    from peergraph.memory.table.table import Table

Source = torch.Tensor | np.ndarray[Any, Any]

_READ_CHUNK_BYTES = 64 << 20


def load(table: Table, source: Source, start: int, chunk_bytes: int, progress: bool | None) -> None:
    """Implements Table.load."""
    _check_source(table, source, start)
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, got {chunk_bytes}")
    num_bytes = len(source) * table.row_bytes
    ranges = _chunks(table, len(source), chunk_bytes)
    ranges = _with_bar(ranges, num_bytes, table.row_bytes, progress)
    if table.device.type == "cpu":
        for begin, end in ranges:
            chunk = _contiguous(source[begin:end])
            table._write_range(start + begin, end - begin, _address(chunk))
    else:
        _load_cuda(table, source, start, ranges)


def read(table: Table, start: int, stop: int | None, out: torch.Tensor | None) -> torch.Tensor:
    """Implements Table.read."""
    stop = table.rows if stop is None else stop
    if not 0 <= start <= stop <= table.rows:
        raise ValueError(f"rows [{start}, {stop}) are not within a table of {table.rows} rows")
    shape = (stop - start, *table.shape[1:])
    result = out_tensor(out, shape, table.dtype, torch.device("cpu"))
    for begin, end in _chunks(table, stop - start, _READ_CHUNK_BYTES):
        part = result[begin:end]
        if table.device.type == "cpu":
            table._read_range(start + begin, part)
        else:
            staging = torch.empty(part.shape, dtype=table.dtype, device=table.device)
            table._read_range(start + begin, staging)
            part.copy_(staging)
    return result


def _load_cuda(table: Table, source: Source, start: int, ranges: Iterator[tuple[int, int]]) -> None:
    """Two pinned buffers in turn: the CPU fills one while the other is under way to the GPU."""
    stream = torch.cuda.current_stream(table.device)
    buffers: list[tuple[torch.Tensor, torch.cuda.Event]] = []
    for i, (begin, end) in enumerate(ranges):
        chunk = source[begin:end]
        if isinstance(chunk, torch.Tensor) and chunk.device.type == "cuda":
            on_device = chunk.to(table.device).contiguous()
            table._write_range(start + begin, end - begin, on_device.data_ptr())
            continue
        if len(buffers) < 2:
            shape = (end - begin, *table.shape[1:])
            pinned = torch.empty(shape, dtype=table.dtype, pin_memory=True, device="cpu")
            buffers.append((pinned, torch.cuda.Event()))  # type: ignore[no-untyped-call]
        pinned, copied = buffers[i % 2]
        copied.synchronize()
        _fill(pinned[: end - begin], chunk)
        on_device = pinned[: end - begin].to(table.device, non_blocking=True)
        copied.record(stream)
        table._write_range(start + begin, end - begin, on_device.data_ptr())
    stream.synchronize()


def _fill(target: torch.Tensor, source: Source) -> None:
    if isinstance(source, torch.Tensor):
        target.copy_(source)
    else:
        np.copyto(target.numpy(), source)


def _chunks(table: Table, rows: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    if table.row_bytes == 0:
        return
    step = max(1, chunk_bytes // table.row_bytes)
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def _with_bar(
    ranges: Iterator[tuple[int, int]], num_bytes: int, row_bytes: int, progress: bool | None
) -> Iterator[tuple[int, int]]:
    with progress_bar("load", num_bytes, progress) as moved:
        for begin, end in ranges:
            yield begin, end
            moved((end - begin) * row_bytes)


def _check_source(table: Table, source: Source, start: int) -> None:
    if not isinstance(source, torch.Tensor | np.ndarray):
        raise TypeError(f"source must be a tensor or an array, got {type(source).__name__}")
    dtype = source.dtype if isinstance(source, torch.Tensor) else _torch_dtype(source.dtype)
    if dtype != table.dtype:
        raise ValueError(f"source must be {table.dtype}, got {source.dtype}")
    if source.ndim == 0 or tuple(source.shape[1:]) != table.shape[1:]:
        raise ValueError(
            f"source must have shape [n, {', '.join(map(str, table.shape[1:]))}], "
            f"got {tuple(source.shape)}"
        )
    if start < 0 or start + len(source) > table.rows:
        raise ValueError(
            f"rows [{start}, {start + len(source)}) are not within a table of {table.rows} rows"
        )


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        return None


def _contiguous(chunk: Source) -> Source:
    if isinstance(chunk, torch.Tensor):
        return chunk.to("cpu").contiguous()
    return np.ascontiguousarray(chunk)


def _address(chunk: Source) -> int:
    return chunk.data_ptr() if isinstance(chunk, torch.Tensor) else int(chunk.ctypes.data)
