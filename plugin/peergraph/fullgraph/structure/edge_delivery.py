"""Edges travel to the ranks of their destinations, piece by piece, and are sorted there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.fullgraph.exchange.halo import Halo, number_extended
from peergraph.fullgraph.exchange.machine_halo import halo_steps
from peergraph.fullgraph.exchange.route import ALL, Route
from peergraph.fullgraph.exchange.side_by_side import Gather, Steps
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.edge_share import PIECE_EDGES
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.store.csc.sort.edge_places import take_places

Column = Callable[[int], Tensor]
"""Returns a value for each edge of a piece, [edges, ...] on the group's device."""

_INT32 = (1 << 31) - 1


class EdgeDelivery:
    """Edges of all ranks, each given in pieces by a rank, by the rank of their destination.

    On a rank the edges are sorted by destination; those of a destination are in the order of the
    ranks that gave them, and of these ranks' pieces. Besides its results a rank takes 4 bytes for
    each node, 16 more while it delivers, and the memory of a piece. Made by :meth:`steps`. All
    methods are collective; they synchronise.

    Args:
        layout: the rows of destinations.
        num_pieces: of this rank; others may have other numbers.
        destination: internal rows of the destinations of a piece's edges.
    """

    def __init__(self, layout: RowLayout, num_pieces: int, destination: Column) -> None:
        group = layout.group
        self.row_layout = layout
        self._device = group.device
        self._num_pieces = num_pieces
        self._rounds = 0
        self._destination = destination
        dtype = torch.int32 if max(layout.counts) < _INT32 else torch.int64
        self._nothing = torch.empty(0, dtype=dtype, device=self._device)
        self._counts = self._nothing  # of each destination by rank, [ranks, rows]
        self.indptr = torch.zeros(layout.local_count + 1, dtype=torch.int64, device=self._device)
        """[local destinations + 1] offsets of each destination's edges, on this rank."""

    @classmethod
    def steps(cls, layout: RowLayout, num_pieces: int, destination: Column) -> Steps[EdgeDelivery]:
        """Counts the edges of each destination."""
        delivery = cls(layout, num_pieces, destination)
        delivery._rounds = max((yield Gather(num_pieces)))
        counts = yield from delivery._count()
        total = counts[-1] if len(counts) == 1 else counts.sum(0)
        torch.cumsum(total, 0, out=delivery.indptr[1:])
        if len(counts) > 1:
            is_small = counts.numel() == 0 or int(counts.max()) <= _INT32
            delivery._counts = counts.to(torch.int32) if is_small else counts
        return delivery

    @property
    def num_edges(self) -> int:
        """Edges of this rank's destinations."""
        return int(self.indptr[-1])

    def deliver(self, columns: Sequence[Column], outputs: Sequence[Tensor]) -> Steps[None]:
        """Writes values of edges to the ranks of their destinations, sorted by destination.

        Args:
            columns: each gives a value for each edge of a piece.
            outputs: [num_edges, ...] for each column, which takes the values. Of another dtype
                than the column's, the values are converted before they travel.
        """
        places = self._first_places()
        for number in range(self._rounds):
            parts, route = yield from self._route(number)
            places_of_ranks = [take_places(places[r], part) for r, part in enumerate(parts)]
            for column, output in zip(columns, outputs, strict=True):
                shape = output.shape[1:]
                values = output.new_empty((0, *shape))
                if number < self._num_pieces:
                    values = column(number).to(output.dtype)
                received = route.split((yield from route.steps(values)))
                for (order, positions), part in zip(places_of_ranks, received, strict=True):
                    output[positions] = part[order]

    def deliver_sources(
        self, layout: RowLayout, source: Column, others: Sequence[tuple[Column, Tensor]] = ()
    ) -> Steps[tuple[Halo, Csc]]:
        """Makes which rows of sources are exchanged, and this rank's edges.

        Args:
            layout: the rows of sources.
            source: internal rows of the sources of a piece's edges.
            others: further columns, and the outputs that take their values.
        """
        internal = torch.int32 if layout.size < _INT32 else torch.int64
        rows_of_others = yield from self._halo_of(layout, source, internal)
        plan, extended = yield from halo_steps(layout, rows_of_others)
        del rows_of_others, extended
        dtype = torch.int32 if plan.num_extended < _INT32 else torch.int64
        indices = torch.empty(self.num_edges, dtype=dtype, device=self._device)
        # Internal rows become extended rows after they have travelled, in place.
        wide = indices if internal == dtype else indices.to(internal)
        yield from self.deliver([source, *(c for c, _ in others)], [wide, *(o for _, o in others)])
        if layout.group.world_size > 1:
            extended = number_extended(layout, plan.halo_rows)
            pieces = zip(
                torch.split(indices, PIECE_EDGES), torch.split(wide, PIECE_EDGES), strict=True
            )
            for part, rows in pieces:
                part.copy_(extended[rows])
        if self.num_edges < _INT32:
            self.indptr = self.indptr.to(dtype)
        most_chunks = count_chunks(self.indptr)
        return plan, Csc(
            self.indptr, indices, plan.num_extended, max_chunks=most_chunks, check=False
        )

    def _halo_of(self, layout: RowLayout, source: Column, dtype: torch.dtype) -> Steps[Tensor]:
        """Finds the internal rows of other ranks that this rank's edges come from."""
        if layout.group.world_size == 1:
            return torch.empty(0, dtype=torch.int64, device=self._device)
        marks = torch.zeros(layout.size, dtype=torch.bool, device=self._device)
        nothing = torch.empty(0, dtype=dtype, device=self._device)
        for number in range(self._rounds):
            _, route = yield from self._route(number)
            rows = source(number).to(dtype) if number < self._num_pieces else nothing
            marks[(yield from route.steps(rows))] = True
        marks[layout.rows_of(layout.group.rank)] = False
        return marks.nonzero().squeeze(1)

    def _count(self) -> Steps[Tensor]:
        """Counts the edges of each destination by the rank that gives them, [ranks, rows]."""
        world_size, rows = self.row_layout.group.world_size, self.row_layout.local_count
        counts = torch.zeros((world_size, rows), dtype=torch.int64, device=self._device)
        for number in range(self._rounds):
            parts, _ = yield from self._route(number)
            for of_rank, part in zip(counts, parts, strict=True):
                of_rank.index_add_(0, part, torch.ones_like(part, dtype=torch.int64))
        return counts

    def _first_places(self) -> Tensor:
        """Finds the place of the first edge of each destination by rank, [ranks, rows]."""
        starts = self.indptr[:-1].long()
        if self.row_layout.group.world_size == 1:
            return starts.clone().unsqueeze(0)
        before = self._counts.cumsum(0).sub_(self._counts)
        return before.add_(starts)

    def _route(self, number: int) -> Steps[tuple[list[Tensor], Route]]:
        """Finds local destinations by the rank that gave them, and how values follow them."""
        layout, rows = self.row_layout, self._nothing
        if number < self._num_pieces:
            rows = self._destination(number)
        if layout.group.world_size == 1:
            route = Route(Transport.of(layout.group), ALL, [len(rows)], [len(rows)])
            return [rows.to(self._nothing.dtype)], route
        owner, local = layout.owners_of(rows)
        route = yield from Route.to_ranks(layout.group, owner)
        received = yield from route.steps(local.to(self._nothing.dtype))
        return route.split(received), route
