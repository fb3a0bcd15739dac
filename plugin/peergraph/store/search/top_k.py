"""Exact top-k of inner products with the rows of a table (maximum inner product search)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.memory import DistributedTable, NarrowTable, Table
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.table.id_list import integers
from peergraph.memory.table.local_rows import LocalRows, local_rows
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.hotness.id_map import inverse_order
from peergraph.store.search.candidates import Excluded, Scan, places_of
from peergraph.store.search.exact_products import largest, largest_products
from peergraph.store.search.query_exchange import Queries, QueryExchange
from peergraph.store.tensors.table_tensor import TableTensor

Exclude = Tensor | tuple[Tensor, Tensor]


class TopK(NamedTuple):
    """The result of :func:`top_k`, on the table's device.

    Args:
        values: [Q, k] products, by falling value; float64 for a table of float64, else float32.
            ``-inf`` where there are fewer than k rows.
        ids: [Q, k] int64 user ids of the rows, -1 where there are fewer.
    """

    values: Tensor
    ids: Tensor


def top_k(
    table: Table | TableTensor | Embedding,
    queries: Tensor,
    k: int,
    *,
    exclude: Exclude | None = None,
) -> TopK:
    """Returns, for each query, the k rows of a table with the largest inner products, exactly.

    It is ``torch.topk(queries.double() @ rows.double().T, k)`` over all rows; of equal products the
    lowest ids come first. Products are computed in float64, of the rows as a gather returns them,
    and values are rounded at the end. The result depends on rows, queries and k only: all numbers
    of ranks, placements and devices give the same bits.

    Each rank multiplies the queries of all ranks with the rows that it stores, block by block, and
    the ranks send each other their k best. On a GPU the blocks are multiplied in bfloat16, narrow
    rows without being widened in memory as a whole. All rows that rounding could confuse with the
    k-th are then multiplied in float64. Rows on disk and in host memory are read through the GPU.

    Collective over the ranks of the machine, each with its own queries. Waits for the GPU.

    Args:
        table: ``[rows, columns]`` of float32, float64, float16 or bfloat16, with any tiers and any
            narrow storage: a table, a tensor of shared data such as ``data.x``, or an embedding.
        queries: [Q, columns] floating point, on any device; each rank has its own, or none.
        k: rows per query.
        exclude: rows that queries leave out, such as known neighbours: int64 [2, pairs] with the
            number of the query and the user id of the row; or a pair (indptr [Q + 1], ids), the
            ids of query q at ``indptr[q]:indptr[q + 1]``.

    Raises (a rank with wrong arguments raises these errors, the others RuntimeError):
        ValueError: shapes do not fit, k is below 1, or a query or a row is not finite.
        TypeError: a table or queries of another type.
        IndexError: an excluded id or query is out of range.
        NotImplementedError: a table with rows split over machines.
        PeerLostError: a rank is missing.

    Example::

        values, ids = peergraph.top_k(data.x, model(batch), 100, exclude=(indptr, neighbors))
    """
    rows = _table_of(table)
    group = rows.group
    exchange = QueryExchange(group, rows.shape[1] if len(rows.shape) == 2 else 1)
    with group.collective("top_k"):
        batch, counts = exchange.share(lambda: _check(rows, queries, k, exclude))
        products, ids = exchange.give_back(batch.k, counts, lambda: _search(rows, batch))
    if products.shape[1] != k:  # those of several ranks, or for another rank's larger k
        products, ids = largest(products, ids, k)
    return TopK(products if rows.dtype == torch.float64 else products.float(), ids)


def _table_of(table: Table | TableTensor | Embedding) -> Table:
    if isinstance(table, (TableTensor, Embedding)):
        table = table.table
    if not isinstance(table, Table):
        raise TypeError(f"table: expected a table or an embedding, got {type(table).__name__}")
    if isinstance(table, DistributedTable):
        raise NotImplementedError(
            "table: its rows are split over machines; build the store with machines='replicate'"
        )
    return table


def _order_of(table: Table) -> Table | Tensor | None:
    """Returns the internal row of each user id; None: they are equal."""
    stored = table.stored if isinstance(table, NarrowTable) else table
    return (stored.values if isinstance(stored, RowsWithScales) else stored)._order


def _check(table: Table, queries: Tensor, k: int, exclude: Exclude | None) -> Queries:
    if not table.dtype.is_floating_point or len(table.shape) != 2:
        raise ValueError(
            f"table: expected two dimensions of floats, got {table.dtype} {list(table.shape)}"
        )
    queries = plain("queries", queries).detach()
    if not queries.is_floating_point():
        raise TypeError(f"queries: expected floats, got {queries.dtype}")
    if queries.dim() != 2 or queries.shape[1] != table.shape[1]:
        raise ValueError(
            f"queries: expected shape [Q, {table.shape[1]}], got {list(queries.shape)}"
        )
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k: expected an integer, got {k!r}")
    if k < 1:
        raise ValueError(f"k: expected 1 or more, got {k}")
    queries = queries.to(table.device).double().contiguous()
    if not math.isfinite(queries.square().sum().item()):
        raise ValueError("queries: expected finite values whose squares do not overflow")
    query, ids = _pairs(exclude, len(queries), table.device)
    if exclude is None:
        return Queries(queries, query, ids, k)
    for name, values, limit in (("queries", query, len(queries)), ("ids", ids, table.rows)):
        bad = (values < 0) | (values >= limit)
        if bool(bad.any()):
            first = int(values[bad.nonzero()[0]])
            raise IndexError(f"exclude: {first} is out of range for {limit} {name}")
    return Queries(queries, query, ids, k)


def _pairs(
    exclude: Exclude | None, num_queries: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    if exclude is None:
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return empty, empty
    if isinstance(exclude, tuple):
        if len(exclude) != 2:
            raise ValueError(f"exclude: expected a pair (indptr, ids), got {len(exclude)} items")
        indptr, ids = (_integers(part).to(device) for part in exclude)
        shapes_fit = indptr.dim() == ids.dim() == 1 and len(indptr) == num_queries + 1
        degrees = indptr.diff() if shapes_fit else indptr
        if not shapes_fit or bool((degrees < 0).any()) or int(degrees.sum()) != len(ids):
            raise ValueError(
                f"exclude: indptr must rise from 0 to the number of ids in {num_queries + 1} steps"
            )
        return torch.arange(num_queries, device=device).repeat_interleave(degrees), ids
    pairs = _integers(exclude).to(device)
    if pairs.dim() != 2 or len(pairs) != 2:
        raise ValueError(f"exclude: expected shape [2, pairs], got {list(pairs.shape)}")
    return pairs[0], pairs[1]


def _integers(values: Tensor) -> Tensor:
    values = plain("exclude", values)
    if values.is_floating_point() or values.dtype == torch.bool:
        raise TypeError(f"exclude: expected integers, got {values.dtype}")
    return integers(values).long()


def _search(table: Table, batch: Queries) -> tuple[Tensor, Tensor]:
    """Returns the k largest products with the rows of this rank, and their user ids."""
    pieces = local_rows(table)
    scan = Scan(pieces, batch.vectors, batch.k, table.dtype)
    candidates = scan.candidates(_excluded(table, pieces, batch))
    order = _order_of(table)
    user_ids = None if order is None else inverse_order(order)
    return largest_products(table, candidates, user_ids, batch.vectors, batch.k)


def _excluded(table: Table, pieces: list[LocalRows], batch: Queries) -> Excluded:
    order, ids = _order_of(table), batch.excluded_ids
    if not ids.numel():
        return Excluded(batch.excluding, ids)
    order = order.as_tensor() if isinstance(order, Table) else order
    places = places_of(pieces, ids if order is None else order[ids].long())
    places, by_place = places.sort(stable=True)
    first = int((places < 0).sum())
    return Excluded(batch.excluding[by_place[first:]], places[first:])
