"""Inner products in float64 whose bits depend on the two vectors only."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import NarrowTable, Table
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.memory.table.table_view import dense_view

_GATHERED_BYTES = 256 << 20


def exact_products(table: Table, ids: Tensor, queries: Tensor) -> Tensor:
    """Returns the products of each query with rows of its own: float64 [Q, n]. Asynchronous on a
    GPU, unless rows are on disk. One-sided.

    They are computed in float64 and added in the same order on every device and for every number of
    rows.

    Args:
        table: ``[rows, columns]`` of a floating dtype.
        ids: [Q, n] int64 user ids in range; -1: none, whose product is ``-inf``.
        queries: float64 [Q, columns], contiguous, on the table's device.
    """
    ids = ids.contiguous()
    products = torch.empty(ids.shape, dtype=torch.float64, device=queries.device)
    if table.tiers.disk and table.device.type == "cuda":
        row_bytes = max(1, table.shape[1] * table.dtype.itemsize * ids.shape[1])
        step = max(1, _GATHERED_BYTES // row_bytes)
        for begin in range(0, len(ids), step):
            part = slice(begin, begin + step)
            places = torch.arange(ids[part].numel(), device=ids.device).view(ids[part].shape)
            rows = table.gather(ids[part].clamp(min=0).view(-1))
            view = dense_view(rows, len(rows), rows.shape[1] * rows.element_size())
            places = torch.where(ids[part] < 0, -1, places)
            _multiply(view, table.dtype, None, None, queries[part], places, products[part])
        return products
    view, codec, scales = _views(table)
    _multiply(view, table.dtype, codec, scales, queries, ids, products)
    return products


def _views(table: Table) -> tuple[_C.TableView, _C.RowCodec | None, _C.TableView | None]:
    """Returns the stored rows, what decodes them, and their scales where they are apart."""
    if not isinstance(table, NarrowTable):
        return table.view, None, None
    stored = table.stored
    if isinstance(stored, RowsWithScales):
        return stored.values.view, table.codec.native, stored.scales.view
    return stored.view, table.codec.native, None


def _multiply(
    view: _C.TableView,
    dtype: torch.dtype,
    codec: _C.RowCodec | None,
    scales: _C.TableView | None,
    queries: Tensor,
    ids: Tensor,
    products: Tensor,
) -> None:
    _C.exact_products(
        table=view,
        dtype=DTYPES[dtype],
        codec=codec,
        scales=scales,
        queries=queries,
        ids=ids,
        products=products,
        launch=launch_on(queries.device),
    )
