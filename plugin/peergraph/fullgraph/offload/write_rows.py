"""Rows of a partitioned tensor straight to a table of a store or to a file."""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.fullgraph.offload.gathering import visit_rows
from peergraph.fullgraph.offload.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.naming import collective
from peergraph.memory.table.table import Table

Target = Table | str | PathLike[str] | np.ndarray[Any, Any]


@collective("write_rows")
def write_rows(rows: PartitionedTensor, target: Target) -> None:
    """Writes a partitioned tensor in the user's order, each rank its rows. Collective.

    Rows that are not computed yet, such as a model's results over an offloaded graph, are computed
    chunk by chunk and never held as a whole.

    Args:
        rows: [rows, *features].
        target: a table of a store, whose rows are overwritten; the name of a ``.npy`` file, which
            is made anew, for ``numpy.load(name, mmap_mode="r")``, on a disk that all machines
            share; or an array or memory map that all ranks share. A tensor over a table is its
            ``table``.

    Raises:
        NotImplementedError: a table or an array, with ranks of several machines.
        TypeError: the dtype is none of NumPy's, or not the target's.
        ValueError: rows are not the first dimension, or the target has another shape.
        OSError: the disk is full; on every rank, and the file is removed.
    """
    if not isinstance(rows, PartitionedTensor):
        raise TypeError(f"rows must be a PartitionedTensor, got {type(rows).__name__}")
    if rows.partitioned_dim != 0:
        raise ValueError(
            f"rows must be partitioned along dimension 0, got {rows.partitioned_dim} of "
            f"{list(rows.shape)}"
        )
    if isinstance(target, (str, PathLike)):
        _write_file(rows, os.fspath(target))
        return
    group = rows.layout.group
    if group.node_group is not group:
        raise NotImplementedError(
            "writing rows of several machines to a table or an array, of which each machine has "
            "its own: write a file on a disk that all machines share"
        )
    if tuple(target.shape) != tuple(rows.shape):
        raise ValueError(f"target must have the shape {list(rows.shape)}, got {list(target.shape)}")
    _write(rows, target)
    group.barrier()


def _write_file(rows: PartitionedTensor, name: str) -> None:
    group = rows.layout.group
    dtype = _numpy_dtype(rows.dtype)

    def make() -> None:
        if group.rank == 0 and rows.numel() == 0:
            np.save(name, np.empty(tuple(rows.shape), dtype))
        elif group.rank == 0:
            made = np.lib.format.open_memmap(name, "w+", dtype, tuple(rows.shape))
            del made
            # A write to a page that the disk has no room for would end the process.
            with open(name, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(name))

    def fill() -> None:
        array = np.lib.format.open_memmap(name, "r+") if rows.numel() else None
        _write(rows, array)
        if array is not None:
            array.flush()

    try:
        collective_call(group, make)
        collective_call(group, fill)
    except BaseException:
        if group.rank == 0 and os.path.exists(name):
            os.remove(name)
        raise


def _write(rows: PartitionedTensor, target: Any) -> None:
    layout = rows.layout
    if isinstance(target, Table):
        if target.dtype != rows.dtype:
            raise TypeError(f"target must be {rows.dtype} as the rows, got {target.dtype}")
    elif target is not None and target.dtype != _numpy_dtype(rows.dtype):
        raise TypeError(
            f"target must be {_numpy_dtype(rows.dtype)} as the rows, got {target.dtype}"
        )

    def write(start: int, part: Tensor) -> None:
        ids = layout.positions[start : start + len(part)]
        if isinstance(target, Table):
            target.scatter(ids, part)
        elif target is not None:
            target[ids.cpu().numpy()] = part.cpu().numpy()

    if isinstance(rows, OffloadedTensor):
        visit_rows(rows, write)
    else:
        write(0, rows.to_local().detach())


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        raise TypeError(f"NumPy has no {dtype}: convert the rows first, rows.float()") from None
