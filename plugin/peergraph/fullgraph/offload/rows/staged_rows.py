"""Rows of mapped files and pageable memory pass through pinned memory to and from a GPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.device.pinned_pipeline import PinnedPipeline
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.staged_rows import disk_launch
from peergraph.memory.table.table_view import dense_view


def read_staged(
    memory: Tensor, rows: Tensor | int, out: Tensor, num_threads: int | None = None
) -> None:
    """Copies rows of CPU memory to the GPU in the current stream. Waits for the CPU's part.

    Args:
        memory: [rows, *features] contiguous on the CPU.
        rows: [k] int32 or int64 rows on the GPU, or the first of consecutive ones.
        out: [k, *features] contiguous on the GPU.
        num_threads: that read the memory; None: as many as read a disk.
    """
    row_bytes = out[:1].nbytes
    if row_bytes == 0:
        return
    target = out.view(len(out), -1).view(torch.uint8)
    view, ids = _view(memory, row_bytes), _ids_on_cpu(rows, len(out))
    stream = torch.cuda.current_stream(out.device)
    threads = disk_launch().num_threads if num_threads is None else num_threads
    launch = launch_on(out.device, stream, threads)
    for part, buffer in _reading(out.device).pieces(len(out), row_bytes, stream):
        # A thread copies what it has read while others still read.
        _C.stage(view, id_list(ids[part]), buffer, target[part], launch)


def write_staged(memory: Tensor, rows: Tensor | int, values: Tensor) -> None:
    """Copies rows of a GPU to rows of CPU memory. Waits until they are written.

    Args:
        memory: [rows, *features] contiguous on the CPU.
        rows: [k] int32 or int64 distinct rows on the GPU, or the first of consecutive ones.
        values: [k, *features] on the GPU, whose work is queued in the current stream.
    """
    row_bytes = values[:1].nbytes
    if row_bytes == 0:
        return
    source = values.contiguous().view(len(values), -1).view(torch.uint8)
    view, ids, launch = _view(memory, row_bytes), _ids_on_cpu(rows, len(values)), disk_launch()
    stream = torch.cuda.current_stream(values.device)
    for part, buffer in _writing(values.device).pieces(len(values), row_bytes, stream):
        buffer.copy_(source[part], non_blocking=True)
        stream.synchronize()
        _C.scatter(view, id_list(ids[part]), buffer, launch)


@cache
def _reading(device: torch.device) -> PinnedPipeline:
    return PinnedPipeline(device)


@cache
def _writing(device: torch.device) -> PinnedPipeline:
    """Apart from reads, which run in another thread at the same time."""
    return PinnedPipeline(device)


def _view(memory: Tensor, row_bytes: int) -> _C.TableView:
    return dense_view(memory, len(memory), row_bytes)


def _ids_on_cpu(rows: Tensor | int, count: int) -> Tensor:
    if isinstance(rows, Tensor):
        return rows.cpu()
    return torch.arange(rows, rows + count, device="cpu")
