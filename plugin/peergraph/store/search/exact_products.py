"""Inner products in float64 whose bits depend on the two vectors only, and the largest of them."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import NarrowTable, Table
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.memory.table.table_view import dense_view
from peergraph.store.search.product_filter import Candidates

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


def largest_products(
    table: Table, candidates: Candidates, user_ids: Tensor | None, queries: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Returns the k largest products of each query with candidates, float64 [Q, k], and the user
    ids of the rows, in the order of :func:`largest`. Asynchronous on a GPU, as
    :func:`exact_products`. One-sided.

    Args:
        table: ``[rows, columns]`` of a floating dtype.
        candidates: of each query.
        user_ids: [rows] of the internal rows; None: they are equal.
        queries: float64 [Q, columns], contiguous, on the table's device.
    """
    most, places = candidates.most, candidates.places
    is_read_from_disk = bool(table.tiers.disk) and table.device.type == "cuda"
    if most > _C.most_ranked or is_read_from_disk:
        numbers = torch.arange(most, device=places.device)
        is_row = numbers < candidates.counts[:, None]
        rows = places[:, :most].where(is_row, 0)
        ids = torch.where(is_row, rows if user_ids is None else user_ids[rows].long(), -1)
        return largest(exact_products(table, ids, queries), ids, k)
    products = torch.empty((len(queries), k), dtype=torch.float64, device=queries.device)
    ids = torch.empty((len(queries), k), dtype=torch.int64, device=queries.device)
    view, codec, scales = _views(table)
    _C.rank_products(
        table=view,
        dtype=DTYPES[table.dtype],
        codec=codec,
        scales=scales,
        queries=queries,
        places=places,
        counts=candidates.counts,
        most=most,
        user_ids=user_ids,
        products=products,
        ids=ids,
        launch=launch_on(queries.device),
    )
    return products, ids


def largest(products: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest products of each row, by falling product, then by rising id; ``-inf``
    and -1 where there are fewer.
    """
    # Places without a row come last among equal products.
    order = torch.where(ids < 0, torch.iinfo(torch.int64).max, ids).argsort(dim=1, stable=True)
    products, ids = products.gather(1, order), ids.gather(1, order)
    order = products.argsort(dim=1, descending=True, stable=True)[:, :k]
    products, ids = products.gather(1, order), ids.gather(1, order)
    missing = k - ids.shape[1]
    if missing > 0:
        products = torch.nn.functional.pad(products, (0, missing), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, missing), value=-1)
    return products, ids


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
