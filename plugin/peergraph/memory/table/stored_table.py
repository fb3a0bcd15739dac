"""Tables as the compiled module gathers them, without Python."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import peergraph._C as _C
from peergraph.memory.device.torch_functions import dtype_number
from peergraph.memory.table.list_table import ListTable
from peergraph.memory.table.table import Table

_stored: WeakKeyDictionary[Table, _C.StoredTable] = WeakKeyDictionary()


def stored_tables(table: Table | ListTable) -> tuple[_C.StoredTable, _C.StoredTable | None] | None:
    """Returns the table, and that of the elements of its lists, if it has lists; None if a gather
    takes more steps than kernels of this device.

    Raises RuntimeError if the table is closed.
    """
    if not isinstance(table, ListTable):
        rows = _stored_table(table)
        return None if rows is None else (rows, None)
    bounds, elements = _stored_table(table.bounds), _stored_table(table.elements)
    return None if bounds is None or elements is None else (bounds, elements)


def _stored_table(table: Table) -> _C.StoredTable | None:
    direct = table.direct_read()
    if direct is None:
        return None
    stored = _stored.get(table)
    if stored is None:
        number = dtype_number(table.dtype)
        if number is None:
            return None
        stored = _stored[table] = _C.StoredTable(
            table=direct.view,
            codec=direct.codec,
            scales=direct.scales,
            dtype=number,
            item_bytes=table.dtype.itemsize,
            row_shape=list(table.shape[1:]),
        )
    return stored
