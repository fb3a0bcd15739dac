"""Reads of rows into the memory of one processor, as they are stored or in the users' dtype."""

from __future__ import annotations

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.table_view import dense_view


def read_rows(
    view: _C.TableView,
    ids: _C.IdList,
    out: torch.Tensor,
    launch: Launch,
    codec: _C.RowCodec | None = None,
) -> None:
    """Writes rows of a table to `out`.

    Args:
        view: the table.
        ids: the rows, and where they come in the result.
        out: contiguous; the rows as they are stored or, with a codec, in the users' dtype.
        launch: where the operation runs.
        codec: decodes the rows.
    """
    if codec is None:
        _C.gather(view, ids, out, launch)
    else:
        _C.decode_gather(view, codec, ids, out, launch)


def place_rows(
    rows: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    launch: Launch,
    codec: _C.RowCodec | None = None,
) -> None:
    """Writes stored rows to rows of a result.

    Args:
        rows: uint8 [n, row bytes], on the device of `out`.
        positions: int64 [n] rows of `out`.
        out, launch, codec: as in :func:`read_rows`.
    """
    row_bytes = rows.shape[1]
    if codec is None:
        count = out.numel() * out.element_size() // row_bytes
        _C.scatter(dense_view(out, count, row_bytes), id_list(positions), rows, launch)
    else:
        every = _C.IdList(first=0, count=len(rows), out_index=positions)
        _C.decode_gather(dense_view(rows, len(rows), row_bytes), codec, every, out, launch)
