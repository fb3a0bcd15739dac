"""Gathers rows of several tables in one call of the compiled module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on, most_blocks
from peergraph.memory.device.torch_functions import adopt_tensors, torch_functions
from peergraph.memory.table.id_list import id_list, ids_on_device
from peergraph.memory.table.list_table import ListRows, ListTable, list_places, list_sizes
from peergraph.memory.table.stored_table import stored_tables
from peergraph.memory.table.table import Table
from peergraph.profiling import GATHER, profiled


@overload
def gather_tables(reads: Sequence[tuple[Table, Tensor]]) -> list[Tensor]: ...


@overload
def gather_tables(
    reads: Sequence[tuple[Table | ListTable, Tensor]],
) -> list[Tensor | ListRows]: ...


@profiled(GATHER)
def gather_tables(
    reads: Sequence[tuple[Table, Tensor]] | Sequence[tuple[Table | ListTable, Tensor]],
) -> list[Tensor] | list[Tensor | ListRows]:
    """Returns rows of several tables, each as :meth:`Table.gather`. One-sided.

    What the device reads by itself is gathered in one call of the compiled module, during which
    other threads of Python run: a thread that gathers each table alone waits for Python's lock
    after each. Tables whose rows CPU threads or other machines read for a GPU, and those whose
    reads are counted, are gathered one after the other. If there are lists, the host waits for a
    GPU once in each case, for the numbers of their elements.

    Args:
        reads: tables of one device, and the ids of the rows: int32 or int64, any shape, on the CPU
            or that device; for lists ``[rows]``.

    Raises as :meth:`Table.gather` does, for one of the tables with an error.

    Example:
        >>> x, y = gather_tables([(features, ids), (labels, ids)])
    """
    results = _gather_directly(reads)
    others = [i for i, rows in enumerate(results) if rows is None]
    for i, rows in zip(others, _gather_alone([reads[i] for i in others]), strict=True):
        results[i] = rows
    return [rows for rows in results if rows is not None]


def _gather_directly(
    reads: Sequence[tuple[Table | ListTable, Tensor]],
) -> list[Tensor | ListRows | None]:
    """Returns the rows that the device reads by itself; None for others."""
    results: list[Tensor | ListRows | None] = [None] * len(reads)
    native, places, num_lists = [], [], 0
    lists: dict[tuple[int, int], tuple[Tensor, _C.IdList]] = {}
    for i, (table, ids) in enumerate(reads):
        stored = stored_tables(table)
        if stored is None:
            continue
        rows = table.bounds.rows if isinstance(table, ListTable) else table.rows
        # Ids are checked once for all tables of as many rows.
        key = (id(ids), rows)
        if key not in lists:
            checked = ids_on_device(ids, rows, _device(table))
            lists[key] = checked, id_list(checked, max_blocks=most_blocks())
        native.append((*stored, lists[key][1]))
        places.append(i)
        num_lists += stored[1] is not None
    if not native:
        return results
    device = _device(reads[0][0])
    functions, adopt = torch_functions(device.type), adopt_tensors()
    if functions is None or adopt is None:
        return results
    sizes = list_sizes(num_lists, device)
    try:
        gathered = iter(_C.gather_tables(native, functions, adopt, sizes, launch_on(device)))
    except MemoryError:  # torch's own error says how much there is, and what there was
        return results
    for i, (_, elements, _) in zip(places, native, strict=True):
        rows, ids = next(gathered), reads[i][1]
        if elements is not None:
            results[i] = ListRows(rows, next(gathered))
        else:
            results[i] = rows if ids.ndim == 1 else rows.view(*ids.shape, *rows.shape[1:])
    return results


def _gather_alone(
    reads: Sequence[tuple[Table | ListTable, Tensor]],
) -> list[Tensor | ListRows]:
    """Returns rows that were gathered table by table."""
    rows = [
        (table.bounds if isinstance(table, ListTable) else table).gather(ids)
        for table, ids in reads
    ]
    bounds = [
        (of_read, table.elements)
        for (table, _), of_read in zip(reads, rows, strict=True)
        if isinstance(table, ListTable)
    ]
    places = list_places([(of_read, elements.rows) for of_read, elements in bounds])
    lists = iter(
        [
            ListRows(ends, elements.gather(at))
            for (ends, at), (_, elements) in zip(places, bounds, strict=True)
        ]
    )
    return [
        next(lists) if isinstance(table, ListTable) else of_read
        for (table, _), of_read in zip(reads, rows, strict=True)
    ]


def _device(table: Table | ListTable) -> torch.device:
    return (table.bounds if isinstance(table, ListTable) else table).device
