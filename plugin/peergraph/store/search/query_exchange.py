"""Sends queries to all ranks, and the results of each rank's rows back to the ranks that asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.training.coalesce import SparseRows
from peergraph.memory.training.exchange import Exchange, Outgoing

T = TypeVar("T")


@dataclass(frozen=True)
class Queries:
    """Queries, and pairs of a query and the user id of a row that it leaves out.

    Args:
        vectors: float64 [Q, columns].
        excluding: int64 [pairs] numbers of queries.
        excluded_ids: int64 [pairs].
        k: rows per query.
    """

    vectors: Tensor
    excluding: Tensor
    excluded_ids: Tensor
    k: int


class QueryExchange:
    """Exchanges queries of one width, and results, between the ranks of a machine.

    Args:
        group: the ranks.
        columns: the width of queries; equal on all ranks.
    """

    def __init__(self, group: Group, columns: int) -> None:
        self._group = group
        self._columns = columns

    def share(self, make: Callable[[], Queries]) -> tuple[Queries, list[int]]:
        """Returns the queries of all ranks, one after the other, with the largest k; and how many
        each rank has. Collective.

        Args:
            make: returns this rank's queries. If it fails on one rank, that rank raises its error,
                and the others raise RuntimeError.
        """
        if self._group.world_size == 1:
            mine = make()
            return mine, [len(mine.vectors)]
        tables = [(self._columns, torch.float64), (1, torch.int64)]
        vectors, pairs = self._send(tables, make, self._to_all)
        counts = [rows.count for rows in vectors]
        begins = [0, *accumulate(counts)]
        ks = torch.cat([rows.keys for rows in vectors])
        none = [ks[:0]]
        return (
            Queries(
                torch.cat([rows.values for rows in vectors]),
                torch.cat([rows.keys + n for rows, n in zip(pairs, begins, strict=False)] or none),
                torch.cat([rows.values[:, 0] for rows in pairs] or none),
                int(ks.max()) if ks.numel() else 1,
            ),
            counts,
        )

    def give_back(
        self, k: int, counts: list[int], search: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Returns what all ranks have found for this rank's queries: [Q, ranks * k] each.
        Collective.

        Args:
            k: rows per query.
            counts: the number of queries of each rank.
            search: returns products, float64 [queries of all ranks, k], and ids, int64. Failures
                are those of :meth:`share`.
        """
        if self._group.world_size == 1:
            return search()

        def to_owners(results: tuple[Tensor, Tensor]) -> list[Outgoing | None]:
            products, ids = results
            bits = torch.cat([products.view(torch.int64), ids], 1)
            keys = torch.zeros(len(bits), dtype=torch.int64, device=bits.device)
            return [Outgoing(SparseRows(keys, bits), counts)]

        (parts,) = self._send([(2 * k, torch.int64)], search, to_owners)
        products = [rows.values[:, :k].contiguous().view(torch.float64) for rows in parts]
        return torch.cat(products, 1), torch.cat([rows.values[:, k:] for rows in parts], 1)

    def _to_all(self, queries: Queries) -> list[Outgoing | None]:
        ks = torch.full((len(queries.vectors),), queries.k, device=queries.vectors.device)
        world = self._group.world_size
        vectors = SparseRows(ks, queries.vectors)
        pairs = SparseRows(queries.excluding, queries.excluded_ids[:, None])
        return [
            Outgoing(
                SparseRows(rows.keys.repeat(world), rows.values.repeat(world, 1)),
                [rows.count] * world,
            )
            if rows is vectors or rows.count
            else None
            for rows in (vectors, pairs)
        ]

    def _send(
        self,
        tables: Sequence[tuple[int, torch.dtype]],
        work: Callable[[], T],
        outgoing_of: Callable[[T], list[Outgoing | None]],
    ) -> list[list[SparseRows]]:
        key = (QueryExchange, *tables)
        if key not in self._group.shared:
            self._group.shared[key] = Exchange(self._group, tables)
        exchange: Exchange = self._group.shared[key]
        try:
            outgoing = outgoing_of(work())
        except Exception:
            self._group.synchronize()  # this rank has read the others' rows of the last round
            exchange.send(None)
            raise
        parts = exchange.send(outgoing)
        # Other ranks overwrite their rows after the round of the next exchange, in which this rank
        # waits for its stream first.
        return [part or [] for part in parts]
