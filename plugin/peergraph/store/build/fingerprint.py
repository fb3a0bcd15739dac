"""Whether machines bring the same graph: digests of all values, compared before and after loading.

Every machine has a separate store. A mixture of two graphs would be silently wrong.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.device.digest import digest_tensor, sum_of_mixed
from peergraph.memory.group.collective_call import collective_call
from peergraph.store.input.source import (
    EdgeSource,
    EdgeType,
    EncodedRows,
    GraphSource,
    RowSource,
)

_PIECE = 1 << 22  # edges whose digest is computed at a time


class Fingerprint:
    """What machines compare of their graphs, by name: sizes, dtypes, and digests of all values.

    Of rows that a function reads, the digest grows as they are loaded.

    Args:
        source: of this rank; None: it has none.
        first_edges: of each relation, the edges that the ranks before this one bring.
    """

    def __init__(
        self, source: GraphSource | None, first_edges: Mapping[EdgeType, int], group: Group
    ) -> None:
        self.values: dict[str, list[Any]] = {}
        """By name: what must be equal, then the edges or rows and a digest, which add up over the
        ranks of a machine."""
        self.source = source
        """The source that is to be loaded."""
        self._read_by_functions = set[str]()
        if source is None:
            return
        for node_type, count in source.num_nodes.items():
            self.values[f"nodes of {node_type!r}"] = [[int(count)], 0, 0]
        for owner, frames in source.frames.items():
            self.values[f"frames of {owner!r}"] = [[repr(frames)], 0, 0]
        for edge_type, edges in source.edges.items():
            first = source.range_of(edge_type[2])[0], first_edges.get(edge_type, 0)
            digest = digest_edges(edges, *first, group.device)
            self.values[f"edges of {edge_type}"] = [[], edges.num_edges, digest]
        node_tables = {
            t: self._tables(f"of {t!r}", "node", tables, source.range_of(t)[0], group)
            for t, tables in source.node_tables.items()
        }
        edge_tables = {
            t: self._tables(f"of {t}", "edge", tables, first_edges.get(t, 0), group)
            for t, tables in source.edge_tables.items()
        }
        self.source = replace(source, node_tables=node_tables, edge_tables=edge_tables)

    @classmethod
    def of(cls, source: GraphSource | None, group: Group) -> Fingerprint:
        """Returns what the machines compare of this rank's source. Collective."""

        def count() -> dict[EdgeType, int]:
            if source is None:
                return {}
            source.validate()
            return {t: edges.num_edges for t, edges in source.edges.items()}

        before = group.all_gather(collective_call(group, count))[: group.rank]
        first_edges: dict[EdgeType, int] = {}
        for counts in before:
            for edge_type, edges in counts.items():
                first_edges[edge_type] = first_edges.get(edge_type, 0) + edges
        return collective_call(group, lambda: cls(source, first_edges, group))

    def _tables(
        self,
        owner: str,
        kind: str,
        tables: Mapping[str, Tensor | RowSource],
        first: int,
        group: Group,
    ) -> dict[str, Tensor | RowSource]:
        """Adds tables; returns those that are to be loaded."""
        to_load: dict[str, Tensor | RowSource] = {}
        for name, table in tables.items():
            key = f"{kind} table {name!r} {owner}"
            what = [str(table.dtype), *table.shape[1:]]
            to_load[name] = table
            self.values[key] = [what, int(table.shape[0]), 0]
            if isinstance(table, RowSource):
                self._read_by_functions.add(key)
                to_load[name] = self._counting(table, self.values[key], group)
            else:
                self.values[key][2] = digest_tensor(table, group.device, first)
        return to_load

    @staticmethod
    def _counting(table: RowSource, value: list[Any], group: Group) -> RowSource:
        """Returns rows that are added to the digest as they are read, once each."""

        def read(function: Callable[[int, int], Tensor], begin: int, end: int) -> Tensor:
            rows = function(begin, end)
            if isinstance(rows, Tensor):
                value[2] = (value[2] + digest_tensor(rows, group.device, begin)) % 2**64
            return rows

        counting = replace(table, rows=functools.partial(read, table.rows))
        if isinstance(counting, EncodedRows):
            counting.encoded = functools.partial(read, counting.encoded)
        return counting

    def check(self, group: Group, *, after_loading: bool) -> None:
        """Raises ValueError on every rank if machines have different graphs. Collective.

        Args:
            after_loading: whether rows that functions read have been loaded; else their digests
                are left out.
        """
        unread = set[str]() if after_loading else self._read_by_functions
        mine = {k: (v[:2] if k in unread else v) for k, v in self.values.items()}
        brought = [share for share in group.all_gather(mine) if share]
        shares = group.all_gather_machines(_sum(brought) if brought else None)
        senders = [m for m, share in enumerate(shares) if share is not None]
        for machine in senders[1:]:
            for name in {**shares[senders[0]], **shares[machine]}:
                value, other = shares[senders[0]].get(name), shares[machine].get(name)
                if not _is_same(value, other):
                    first, second = (group.machines.name(m) for m in (senders[0], machine))
                    raise ValueError(
                        f"the machines bring different graphs: {name} is {_text(value)} on "
                        f"{first} and {_text(other)} on {second}; give each machine the same, or "
                        "only one of them"
                    )


def digest_edges(edges: EdgeSource, first_node: int, first_edge: int, device: torch.device) -> int:
    """Returns a digest of the sources, destinations and ids of edges, in whatever order.

    Digests of parts of a graph add up, modulo 2^64.

    Args:
        first_node: the first destination of a CSC.
        first_edge: the id of its first edge, where it has no ids.
    """
    total, count = 0, edges.num_edges
    for begin in range(0, count, _PIECE):
        end = min(begin + _PIECE, count)
        ids = torch.arange(first_edge + begin, first_edge + end, device=device)
        if edges.coo is not None:
            source, destination = (ends[begin:end].to(device).long() for ends in edges.coo)
        else:
            assert edges.csc is not None
            indptr, indices = edges.csc
            source = indices[begin:end].to(device).long()
            positions = torch.arange(begin, end, device=indptr.device, dtype=indptr.dtype)
            rows = torch.searchsorted(indptr, positions, right=True) - 1
            destination = rows.to(device) + first_node
            if edges.edge_ids is not None:
                ids = edges.edge_ids[begin:end].to(device).long()
        total += sum_of_mixed(source, destination, ids)
    return total % 2**64


def _sum(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Returns the fingerprint of a machine from those of its ranks."""
    total = {name: list(value) for name, value in parts[0].items()}
    for part in parts[1:]:
        for name, (what, *numbers) in part.items():
            before = total.get(name, [what, *[0] * len(numbers)])
            total[name] = [before[0], *map(operator.add, before[1:], numbers)]
            total[name][2:] = [digest % 2**64 for digest in total[name][2:]]
    return total


def _is_same(value: list[Any] | None, other: list[Any] | None) -> bool:
    """Whether two machines have the same; a digest that one of them lacks is not compared."""
    if value is None or other is None:
        return False
    return all(a == b for a, b in zip(value, other, strict=False))


def _text(value: list[Any] | None) -> str:
    if value is None:
        return "missing"
    what, count, *digest = value
    parts = [*map(str, what), *([f"{count} in number"] if count else [])]
    return ", ".join([*parts, *(f"digest {number:016x}" for number in digest if count)])
