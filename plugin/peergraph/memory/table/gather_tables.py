"""Gathers rows of several tables in one call of the compiled module."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import empty, launch_on, most_blocks
from peergraph.memory.table.id_list import id_list, ids_on_device
from peergraph.memory.table.table import Table
from peergraph.profiling import GATHER, profiled


@profiled(GATHER)
def gather_tables(
    reads: Sequence[tuple[Table, Tensor]], memory: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """Returns rows of several tables, each as :meth:`Table.gather`. One-sided.

    What the device reads by itself is gathered in one call of the compiled module, during which
    other threads of Python run: a thread that gathers each table alone waits for Python's lock
    after each. Tables whose rows CPU threads or other machines read for a GPU, and those whose
    reads are counted, are gathered one after the other.

    Args:
        reads: tables of one device, and the ids of the rows: int32 or int64, any shape, on the CPU
            or that device.
        memory: of each, the tensor to write to, as `out` of :meth:`Table.gather`, on the device;
            None: a new one.

    Raises as :meth:`Table.gather` does, for the first table with an error.

    Example:
        >>> x, y = gather_tables([(features, ids), (labels, ids)])
    """
    results: list[Tensor | None] = []
    native = []
    lists: dict[tuple[int, int], tuple[Tensor, _C.IdList]] = {}
    written: Sequence[Tensor | None] = [None] * len(reads) if memory is None else memory
    for (table, ids), out in zip(reads, written, strict=True):
        direct = table.direct_read()
        if direct is None:
            results.append(None)
            continue
        # Ids are checked once for all tables of as many rows.
        key = (id(ids), table.rows)
        if key not in lists:
            checked = ids_on_device(ids, table.rows, table.device)
            lists[key] = checked, id_list(checked, max_blocks=most_blocks())
        checked, listed = lists[key]
        rows = out
        if rows is None:
            rows = empty((*checked.shape, *table.shape[1:]), table.dtype, table.device)
        results.append(rows)
        native.append((direct.view, direct.codec, direct.scales, listed, rows))
    if native:
        _C.gather_tables(native, launch_on(reads[0][0].device))
    return [
        table.gather(ids, out) if rows is None else rows
        for (table, ids), out, rows in zip(reads, written, results, strict=True)
    ]
