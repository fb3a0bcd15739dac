"""Rows of a partitioned tensor straight to a table of a store or to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.offload.functions.gathering import visit_rows
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory.distributed.distributed_table import DistributedTable
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
            share; or an array or memory map that all ranks of a machine share. A tensor over a
            table is its ``table``. Of several machines, each has a table or an array of its own,
            and gets the rows of all machines; each row crosses the network once for each machine.

    Raises:
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
    group = rows.row_layout.processes
    collective_call(group, lambda: _check_target(rows, target))
    send = _to_machines(rows) if group.node_group is not group else None
    _write(rows, target, send)
    group.barrier()


def _check_target(rows: PartitionedTensor, target: Table | np.ndarray[Any, Any]) -> None:
    if tuple(target.shape) != tuple(rows.shape):
        raise ValueError(f"target must have the shape {list(rows.shape)}, got {list(target.shape)}")
    dtype = rows.dtype if isinstance(target, Table) else _numpy_dtype(rows.dtype)
    if target.dtype != dtype:
        raise TypeError(f"target must be {dtype} as the rows, got {target.dtype}")


def _to_machines(rows: PartitionedTensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns a function that sends rows to one rank of each other machine. Collective, as the
    function is; it takes ids and rows, and returns them with those that came.
    """
    group = rows.row_layout.processes
    transport, partners = Transport.of(group), group.machines.partners
    everyone = group.all_gather(partners)

    def send(ids: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        counts = group.all_gather(len(ids))
        received = []
        for mine in (ids.contiguous(), part.contiguous()):
            inputs = [mine if rank in partners else mine[:0] for rank in range(group.world_size)]
            inputs[group.rank] = mine
            outputs = [
                mine.new_empty((count if group.rank in (rank, *to) else 0, *mine.shape[1:]))
                for rank, (count, to) in enumerate(zip(counts, everyone, strict=True))
            ]
            transport.all_to_all(outputs, inputs)
            received.append(torch.cat(outputs))
        return received[0], received[1]

    return send


def _write_file(rows: PartitionedTensor, name: str) -> None:
    group = rows.row_layout.processes
    dtype = _numpy_dtype(rows.dtype)

    def make() -> None:
        if group.rank == 0 and rows.numel() == 0:
            np.save(name, np.empty(tuple(rows.shape), dtype))
        elif group.rank == 0:
            np.lib.format.open_memmap(name, "w+", dtype, tuple(rows.shape))
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


def _write(
    rows: PartitionedTensor,
    target: Any,
    send: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> None:
    layout = rows.row_layout

    def write(start: int, part: Tensor) -> None:
        ids = layout.positions[start : start + len(part)]
        if send is not None:
            ids, part = send(ids, part)
        if isinstance(target, DistributedTable):
            target.scatter_kept(ids, part)
        elif isinstance(target, Table):
            target.scatter(ids, part)
        elif target is not None:
            target[ids.cpu().numpy()] = part.cpu().numpy()

    if isinstance(rows, OffloadedTensor):
        visit_rows(rows, write)
    else:
        write(0, rows.to_local().detach())


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except TypeError:
        raise TypeError(f"NumPy has no {dtype}: convert the rows first, rows.float()") from None
