"""Counts the rows that ranks need of each other, by which orders of nodes are compared.

The number of edges between blocks (edge cut) does not tell the cost: many edges share a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Matrix = tuple[tuple[int, ...], ...]

_CHUNK_EDGES = 1 << 24


@dataclass(frozen=True)
class Volume:
    """What the edges of a relation need of other ranks.

    Args:
        rows: ``[P][P]``: distinct source rows of rank q that have an edge into rank p, in
            ``rows[p][q]``; the diagonal counts rows of the rank itself.
        edges: ``[P][P]``: edges from rank q into rank p, in ``edges[p][q]``.
        network: ``[machines][P]``: distinct rows of rank q that ranks of machine m need, in
            ``network[m][q]``; 0 for ranks of machine m itself. Empty for one machine.
    """

    rows: Matrix
    edges: Matrix
    network: Matrix = ()

    def __post_init__(self) -> None:
        size = len(self.rows)
        for name in ("rows", "edges"):
            if any(len(row) != size for row in getattr(self, name)) or len(self.edges) != size:
                raise ValueError(f"{name} must be [{size}][{size}]")

    def __add__(self, other: Volume) -> Volume:
        network = self.network or other.network
        if self.network and other.network:
            network = _add(self.network, other.network)
        return Volume(_add(self.rows, other.rows), _add(self.edges, other.edges), network)

    @property
    def received(self) -> tuple[int, ...]:
        """Distinct remote rows that each rank needs."""
        return tuple(sum(row) - row[rank] for rank, row in enumerate(self.rows))

    @property
    def sent(self) -> tuple[int, ...]:
        """Rows that each rank sends, counted once for each rank that needs them."""
        columns = zip(*self.rows, strict=True)
        return tuple(sum(column) - column[rank] for rank, column in enumerate(columns))

    @property
    def largest(self) -> int:
        """Rows that the busiest rank receives or sends: all ranks wait for that rank."""
        return max((*self.received, *self.sent), default=0)

    @property
    def network_received(self) -> tuple[int, ...]:
        """Distinct rows of other machines that each machine needs; none for one machine."""
        return tuple(map(sum, self.network))

    def network_sent(self, machines: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Rows that machines of these ranks send, once for each machine that needs them."""
        by_rank = [sum(column) for column in zip(*self.network, strict=True)]
        return tuple(sum(by_rank[rank] for rank in ranks) for ranks in machines)

    def network_largest(self, machines: Sequence[Sequence[int]]) -> int:
        """Rows that the busiest machine receives or sends over the network; 0 for one machine."""
        if not self.network:
            return 0
        return max((*self.network_received, *self.network_sent(machines)), default=0)

    @property
    def remote_edges(self) -> tuple[int, ...]:
        """Edges of each rank from sources of other ranks."""
        return tuple(sum(row) - row[rank] for rank, row in enumerate(self.edges))

    @property
    def num_edges(self) -> tuple[int, ...]:
        """Edges of each rank."""
        return tuple(map(sum, self.edges))


class VolumeCounter:
    """Counts the :class:`Volume` of a relation piece by piece, on the device of the edges.

    Takes ``world_size * num_sources`` bytes, and about 60 bytes for each of up to 2^24 edges that
    are added at once; the number of edges is not limited. Counters of several ranks, each with a
    share of the edges, are combined by an or of their `marks` and a sum of their `edges`.

    Args:
        source_rank: [sources] rank of each source node, any integer dtype.
        destination_rank: [destinations] rank of each destination node, on the same device.
        world_size: number of ranks.
    """

    def __init__(self, source_rank: Tensor, destination_rank: Tensor, world_size: int) -> None:
        self.world_size = world_size
        self._source_rank = source_rank
        self._destination_rank = destination_rank
        device = source_rank.device
        self.marks = torch.zeros((world_size, source_rank.numel()), dtype=torch.bool, device=device)
        """[P, sources] whether a source has an edge into a rank."""
        self.edges = torch.zeros((world_size, world_size), dtype=torch.int64, device=device)
        """[P, P] edges into rank p from rank q."""

    def add(self, source: Tensor, destination: Tensor) -> None:
        """Counts edges, [edges] int32 or int64 ids of nodes, on any device. Synchronises."""
        flat = self.marks.view(-1)
        for begin in range(0, source.numel(), _CHUNK_EDGES):
            piece = slice(begin, begin + _CHUNK_EDGES)
            sources = source[piece].to(flat.device).long()
            into = self._destination_rank[destination[piece].to(flat.device).long()].long()
            flat[into * self.marks.shape[1] + sources] = True
            pairs = into * self.world_size + self._source_rank[sources]
            counts = torch.bincount(pairs, minlength=self.edges.numel())
            self.edges += counts.view_as(self.edges)

    def volume(self) -> Volume:
        """Returns the volume of all edges that were added, on one machine. Synchronises."""
        rows = [count_by_rank(marks, self._source_rank, self.world_size) for marks in self.marks]
        return Volume(tuple(rows), tuple(map(tuple, self.edges.tolist())))


def count_by_rank(marks: Tensor, rank_of: Tensor, world_size: int) -> tuple[int, ...]:
    """Returns how many marked rows each rank has, by the rank of each row. Synchronises."""
    counts = torch.bincount(rank_of[marks].long(), minlength=world_size)
    return tuple(counts.tolist())


def count_by_machine(
    marks: Tensor, rank_of: Tensor, ranks: Sequence[int], world_size: int
) -> tuple[int, ...]:
    """Returns how many marked rows each rank of other machines has. Synchronises.

    Args:
        marks: [rows] bool: rows that a rank of the machine needs.
        rank_of: [rows] rank of each row.
        ranks: of the machine.
        world_size: ranks of all machines.
    """
    counts = count_by_rank(marks, rank_of, world_size)
    return tuple(0 if rank in ranks else count for rank, count in enumerate(counts))


def _add(left: Matrix, right: Matrix) -> Matrix:
    return tuple(
        tuple(a + b for a, b in zip(*rows, strict=True)) for rows in zip(left, right, strict=True)
    )
