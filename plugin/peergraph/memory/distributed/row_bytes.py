"""Copies stored rows, as bytes."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on, most_blocks
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.table import Table
from peergraph.memory.table.table_view import dense_view


def place_rows(table: Table, rows: Tensor, chosen: Tensor, positions: Tensor, out: Tensor) -> None:
    """Writes stored rows to a gather's result, in the users' dtype. It is one call of the compiled
    module, because each call waits for Python's lock.

    Args:
        table: the table that stores rows in this way.
        rows: uint8 [n, row bytes], contiguous, on the table's device.
        chosen: int64 [m], the rows to write.
        positions: int64 [m], distinct, their positions in the result.
        out: the result of a gather, on the table's device.
    """
    view, launch = dense_view(rows, len(rows), table.row_bytes), launch_on(out.device)
    listed = id_list(chosen, positions, max_blocks=most_blocks())
    if isinstance(table, NarrowTable):
        _C.decode_gather(view, table.codec.native, listed, out, launch)
    else:
        _C.gather(view, listed, out, launch)


def select_rows(rows: Tensor, positions: Tensor) -> Tensor:
    """Returns the rows at positions of a matrix: uint8 [m, row bytes].

    Args:
        rows: uint8 [n, row bytes], contiguous.
        positions: int64 [m].
    """
    return rows.view(_widest_word(rows)).index_select(0, positions).view(torch.uint8)


def _widest_word(rows: Tensor) -> torch.dtype:
    """Returns the widest dtype whose size divides the row bytes and the address of a matrix."""
    # torch copies one element at a time: with bytes, eight times as many as with words of int64.
    for dtype in (torch.int64, torch.int32, torch.int16):
        if rows.size(1) % dtype.itemsize == 0 and rows.data_ptr() % dtype.itemsize == 0:
            return dtype
    return torch.uint8
