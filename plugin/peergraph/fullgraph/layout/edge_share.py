"""A rank's share of a relation's edges, from a list of edges, a CSC or a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from peergraph.aggregate import Csc, row_of_edges
from peergraph.aggregate.sparse.index_tensors import check_ids, check_offsets
from peergraph.fullgraph.layout.blocks import cut_blocks
from peergraph.memory.group.content import describe_content
from peergraph.memory.table.id_list import check_distinct, integers
from peergraph.store import EdgeType, Store

EdgesInput = Tensor | Csc | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]
"""COO [2, edges], or a CSC: an object, or (indptr, indices[, edge_ids])."""

PIECE_EDGES = 1 << 24
"""Edges that are worked on at once: so many take about 1.5 GB while they are sorted."""


class Share(Protocol):
    """A rank's edges of a relation, one piece after the other."""

    @property
    def num_edges(self) -> int:
        """Edges of this share."""
        ...

    @property
    def num_pieces(self) -> int:
        """Pieces of this share."""
        ...

    def piece(self, number: int) -> EdgeShare:
        """Returns the edges of a piece. Synchronises."""
        ...


def pieces_of(share: Share) -> Iterator[EdgeShare]:
    """Returns the pieces of a share, one after the other."""
    return map(share.piece, range(share.num_pieces))


def first_bad_edge(
    share: Share, num_sources: int, num_destinations: int
) -> tuple[int, str, int] | None:
    """Returns the id, end and node of the first edge with an end out of range. Synchronises."""
    bad_edges = (piece.first_bad_edge(num_sources, num_destinations) for piece in pieces_of(share))
    return min((bad for bad in bad_edges if bad is not None), default=None)


@dataclass(frozen=True)
class EdgeShare:
    """Edges in the user's ids, [edges of the share] each, int32 or int64, on one device."""

    source: Tensor
    destination: Tensor
    edge_ids: Tensor

    @property
    def num_edges(self) -> int:
        """Edges of this share."""
        return self.source.numel()

    @property
    def num_pieces(self) -> int:
        """See :attr:`Share.num_pieces`."""
        return -(-self.num_edges // PIECE_EDGES)

    def piece(self, number: int) -> EdgeShare:
        """See :meth:`Share.piece`; without a copy."""
        part = slice(number * PIECE_EDGES, (number + 1) * PIECE_EDGES)
        return EdgeShare(self.source[part], self.destination[part], self.edge_ids[part])

    def first_bad_edge(
        self, num_sources: int, num_destinations: int
    ) -> tuple[int, str, int] | None:
        """Returns the id, end and node of the first edge with an end out of range. Synchronises."""
        bad_edges = []
        for end, nodes, limit in (
            ("source", self.source, num_sources),
            ("destination", self.destination, num_destinations),
        ):
            if nodes.numel() == 0:
                continue
            low, high = map(int, torch.aminmax(nodes))
            if low < 0 or high >= limit:
                bad = ((nodes < 0) | (nodes >= limit)).nonzero().squeeze(1)
                ids = self.edge_ids[bad]
                first = int(ids.argmin())
                bad_edges.append((int(ids[first]), end, int(nodes[bad[first]])))
        return min(bad_edges, default=None)


class EdgeReader(Protocol):
    """Edges of one relation, of which each rank reads a share."""

    num_edges: int
    """Edges of the relation."""

    def digest(self, device: torch.device) -> str:
        """Returns a text that is equal on two ranks if their edges are. Synchronises.

        Args:
            device: that computes, piece by piece.
        """
        ...

    def count(self, rank: int, world_size: int) -> int:
        """Returns the number of edges of a rank's share, without reading them."""
        ...

    def read(self, rank: int, world_size: int, device: torch.device) -> EdgeShare:
        """Returns a rank's share; shares of all ranks are all edges. Synchronises."""
        ...


class UnreadShare:
    """A share whose pieces are read when they are needed.

    Args:
        reader: the edges of all ranks.
        rank, world_size: whose share, of how many.
        device: of the pieces.
        num_pieces: of the share, equal on all ranks.
        keeps: whether pieces that were read stay on the device until :meth:`release`, in 4 bytes
            for each number that fits; else only the last one stays, and others are read again.
    """

    def __init__(
        self,
        reader: EdgeReader,
        rank: int,
        world_size: int,
        device: torch.device,
        num_pieces: int,
        keeps: bool = False,
    ) -> None:
        self.num_pieces = num_pieces
        self._keeps = keeps
        self._shares: dict[int, EdgeShare] = {}
        self._reader = reader
        self._first = rank * num_pieces
        self._of = world_size * num_pieces
        self._device = device

    @cached_property
    def num_edges(self) -> int:
        """See :attr:`Share.num_edges`."""
        pieces = range(self._first, self._first + self.num_pieces)
        return sum(self._reader.count(piece, self._of) for piece in pieces)

    def piece(self, number: int) -> EdgeShare:
        """See :meth:`Share.piece`."""
        if number in self._shares:
            return self._shares[number]
        if not self._keeps:
            self._shares.clear()  # before there are two
        share = self._reader.read(self._first + number, self._of, self._device)
        if self._keeps:
            # Numbers that are out of range stay as they are, to be found by first_bad_edge.
            share = EdgeShare(*map(_narrow, (share.source, share.destination, share.edge_ids)))
        self._shares[number] = share
        return share

    def release(self) -> None:
        """Frees the pieces that were kept; from now on each use reads them."""
        self._keeps = False
        self._shares.clear()


class _PositionReader:
    """Edges that every rank has, of which shares are ranges of positions."""

    num_edges: int

    def count(self, rank: int, world_size: int) -> int:
        """See :meth:`EdgeReader.count`."""
        begin, end = _range(self.num_edges, rank, world_size)
        return end - begin


class EdgeListReader(_PositionReader):
    """Edges of a COO tensor that every rank has; shares are ranges of positions.

    Args:
        edge_index: [2, edges] int32 or int64: sources, destinations.

    Raises:
        TypeError, ValueError: another dtype or shape.
    """

    def __init__(self, edge_index: Tensor) -> None:
        edge_index = integers(edge_index)
        if edge_index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"edges must be int32 or int64, got {edge_index.dtype}")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edges must be [2, edges], got {list(edge_index.shape)}")
        self.edge_index = edge_index
        self.num_edges = edge_index.shape[1]

    def digest(self, device: torch.device) -> str:
        """See :meth:`EdgeReader.digest`."""
        return describe_content(self.edge_index, device)

    def read(self, rank: int, world_size: int, device: torch.device) -> EdgeShare:
        """See :meth:`EdgeReader.read`."""
        begin, end = _range(self.num_edges, rank, world_size)
        source, destination = self.edge_index[:, begin:end].to(device)
        return EdgeShare(source, destination, torch.arange(begin, end, device=device))


class CscReader(_PositionReader):
    """Edges of a CSC that every rank has; shares are ranges of positions.

    Args:
        indptr: [destinations + 1] int32 or int64.
        indices: [edges] int32 or int64 sources.
        edge_ids: [edges] id of the edge at each position; None: the position.
        num_destinations: of the relation.

    Raises:
        TypeError, ValueError: another dtype or shape, or bad offsets.
    """

    def __init__(
        self, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, num_destinations: int
    ) -> None:
        indices = check_ids("indices", indices)
        check_ids("indptr", indptr, indices.device)
        if indptr.numel() != num_destinations + 1:
            raise ValueError(
                f"indptr must have {num_destinations + 1} offsets, one for each destination and "
                f"one more, got {indptr.numel()}"
            )
        self.num_edges = indices.numel()
        check_offsets(indptr, self.num_edges, None)
        if edge_ids is not None:
            check_ids("edge_ids", edge_ids, indices.device, self.num_edges)
            check_distinct("edge_ids", edge_ids, self.num_edges, "edges")
        self.indptr, self.indices, self.edge_ids = indptr, indices, edge_ids

    def digest(self, device: torch.device) -> str:
        """See :meth:`EdgeReader.digest`."""
        tensors = [self.indptr, self.indices, *([] if self.edge_ids is None else [self.edge_ids])]
        return ", ".join(describe_content(tensor, device) for tensor in tensors)

    def read(self, rank: int, world_size: int, device: torch.device) -> EdgeShare:
        """See :meth:`EdgeReader.read`."""
        begin, end = _range(self.num_edges, rank, world_size)
        bounds = torch.tensor([begin, end], dtype=self.indptr.dtype, device=self.indptr.device)
        # Destinations first..stop have all edges at these positions, and no others of the share.
        first = int(torch.searchsorted(self.indptr, bounds[:1], right=True)) - 1
        stop = max(first, int(torch.searchsorted(self.indptr, bounds[1:])))
        offsets = self.indptr[first : stop + 1].to(device).long().clamp(begin, end)
        destination = row_of_edges(offsets, end - begin).add_(first)
        if self.edge_ids is None:
            ids = torch.arange(begin, end, device=device)
        else:
            ids = self.edge_ids[begin:end].to(device).long()
        return EdgeShare(self.indices[begin:end].to(device), destination, ids)


class StoreReader:
    """Edges of a relation of a store; shares are ranges of destinations, read from any tier.

    No rank reads all edges.
    """

    def __init__(self, store: Store, edge_type: EdgeType) -> None:
        self.store = store
        self.edge_type = edge_type
        self.num_edges = store.num_edges(edge_type)
        self._cuts_by_size: dict[int, tuple[list[int], list[int]]] = {}

    def digest(self, device: torch.device) -> str:
        """See :meth:`EdgeReader.digest`; of the numbers of edges of each destination.

        The ranks of a machine have one store; those of several machines have one on each.
        """
        return (
            f"{self.edge_type} of a store, {self.num_edges} edges, "
            f"{describe_content(self._in_degrees, device)}"
        )

    def count(self, rank: int, world_size: int) -> int:
        """See :meth:`EdgeReader.count`."""
        _, edges = self._cuts(world_size)
        return edges[rank + 1] - edges[rank]

    def read(self, rank: int, world_size: int, device: torch.device) -> EdgeShare:
        """See :meth:`EdgeReader.read`."""
        destinations, _ = self._cuts(world_size)
        start, stop = destinations[rank : rank + 2]
        part = self.store.read_csc(self.edge_type, start, stop)
        destination = row_of_edges(part.indptr, part.indices.numel()) + start
        return EdgeShare(part.indices.to(device), destination.to(device), part.edge_ids.to(device))

    @cached_property
    def _in_degrees(self) -> Tensor:
        return self.store.in_degree(self.edge_type)

    def _cuts(self, world_size: int) -> tuple[list[int], list[int]]:
        """Returns where each rank's destinations begin, and its edges; last the end of all.

        They are kept: a share that is read in pieces asks for the same cuts for each piece.
        """
        if world_size not in self._cuts_by_size:
            counts = torch.tensor(cut_blocks(self._in_degrees, world_size), device="cpu")
            destinations = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            edges = torch.cat([counts.new_zeros(1), self._in_degrees.cpu().long().cumsum(0)])
            cuts = destinations.tolist(), edges[destinations].tolist()
            self._cuts_by_size[world_size] = cuts
        return self._cuts_by_size[world_size]


def edge_reader(edges: EdgesInput, num_destinations: int) -> EdgeReader:
    """Returns the reader of edges as users give them.

    Raises:
        TypeError, ValueError: not edges.
    """
    if isinstance(edges, Csc):
        return CscReader(edges.indptr, edges.indices, edges.edge_ids, num_destinations)
    if isinstance(edges, Tensor):
        return EdgeListReader(edges)
    if isinstance(edges, tuple) and len(edges) in (2, 3):
        edge_ids = edges[2] if len(edges) == 3 else None
        return CscReader(edges[0], edges[1], edge_ids, num_destinations)
    raise TypeError(
        "edges must be a tensor [2, edges], a Csc, or a tuple (indptr, indices[, edge_ids]), "
        f"got {type(edges).__name__}"
    )


def _narrow(values: Tensor) -> Tensor:
    """Returns integers in 4 bytes each if all fit. Synchronises."""
    if values.dtype == torch.int32 or values.numel() == 0:
        return values
    low, high = map(int, torch.aminmax(values))
    return values.int() if low >= -(2**31) and high < 2**31 else values


def _range(count: int, rank: int, world_size: int) -> tuple[int, int]:
    return count * rank // world_size, count * (rank + 1) // world_size
