"""The edges of a relation, chunk by chunk of their destinations."""

from __future__ import annotations

from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunk_order import choose_orders
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.chunks.reversed_edges import ReversedEdges
from peergraph.fullgraph.offload.chunks.source_transfers import (
    ALL_SWITCHES,
    SourceTransfers,
    Switches,
)
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc

# Edges to selected rows that are found at once.
_PIECE_EDGES = 1 << 22


class ChunkedCsc:
    """A partitioned structure whose destinations are cut in chunks. Collective to make.

    Besides the resident structure it holds, for each pass order, the row lists of transfers. The
    structure of a chunk is made when it is asked for, in 4-byte ids, and not kept.

    Args:
        resident: the edges of all ranks.
        chunks: of the destinations.
        switches: how rows of sources are moved.

    Raises:
        ValueError: the chunks are not of the destinations, or their number differs between ranks.
        NotImplementedError: edge tensors of `resident` are not sorted by destination.
    """

    def __init__(
        self,
        resident: PartitionedCsc,
        chunks: Chunks,
        switches: Switches = ALL_SWITCHES,
    ) -> None:
        if chunks.row_layout is not resident.destination_layout:
            raise ValueError(
                f"chunks must be of {resident.destination_layout}, got those of {chunks.row_layout}"
            )
        group = chunks.row_layout.processes
        group.agree(chunks=chunks.count, **switches._asdict())
        self.resident = resident
        """The edges of all ranks."""
        self.chunks = chunks
        """Of the destinations."""
        self.edge_chunks = chunks.edge_chunks(resident.local, resident.edge_layout)
        """The edges of each chunk; edge tensors are sorted by destination."""
        self.switches = switches
        """How rows of sources are moved."""
        self._order: tuple[int, ...] | None = None
        self._cut_rows = [count_chunks(self._offsets(chunk)) for chunk in range(chunks.count)]
        self._transfers: WeakKeyDictionary[ChunkedCsc, SourceTransfers] = WeakKeyDictionary()
        self._reversed: ReversedEdges | None = None
        self._reversed_csc: ChunkedCsc | None = None

    def like(self, resident: PartitionedCsc, chunks: Chunks) -> ChunkedCsc:
        """Returns other edges in chunks, of which rows move as here. Collective."""
        return ChunkedCsc(resident, chunks, self.switches)

    @property
    def source_layout(self) -> RowLayout:
        """Rows of sources."""
        return self.resident.source_layout

    @property
    def destination_layout(self) -> RowLayout:
        """Rows of destinations."""
        return self.resident.destination_layout

    @property
    def edge_layout(self) -> RowLayout:
        """Rows of edges, sorted by destination on each rank."""
        return self.resident.edge_layout

    @property
    def needs_remote_rows(self) -> bool:
        """Whether a rank needs rows of another."""
        return not self.resident.plan.is_empty

    @property
    def order(self) -> tuple[int, ...]:
        """This rank's chunk of each batch of a pass that moves source rows.

        The first use is collective where a rank needs rows of another.
        """
        if self._order is None:
            self._order = tuple(range(self.chunks.count))
            if self.switches.orders_chunks:
                sources = [self.sources(chunk) for chunk in self._order]
                orders = choose_orders(self.resident.direct_plan, sources, self.switches)
                self._order = orders[self.chunks.row_layout.group.rank]
        return self._order

    def whole(self, chunk: int) -> Csc:
        """Returns the edges to a chunk's rows, with sources as extended rows of this rank.

        These are local rows where no rank needs rows of another. The ids are a view of the
        resident structure's.
        """
        edges = slice(*self.edge_chunks.range(chunk))
        return self._csc(chunk, self._indices[edges], self.resident.plan.num_extended)

    def of_window(self, chunk: int, window: Tensor) -> Csc:
        """Returns the edges to a chunk's rows, with sources as positions in a window.

        Args:
            chunk: of this rank.
            window: [rows] distinct extended rows, all sources of the chunk among them.
        """
        plan = self.resident.plan
        positions = torch.empty(plan.num_extended, dtype=torch.int32, device=self._indices.device)
        positions[window.long()] = torch.arange(
            len(window), dtype=torch.int32, device=window.device
        )
        edges = slice(*self.edge_chunks.range(chunk))
        return self._csc(chunk, positions.index_select(0, self._indices[edges]), len(window))

    def sources(self, chunk: int) -> Tensor:
        """Returns the distinct extended rows of a chunk's sources, ascending; int32 if all fit."""
        num_extended = self.resident.plan.num_extended
        marks = torch.zeros(num_extended, dtype=torch.bool, device=self._indices.device)
        marks[self._indices[slice(*self.edge_chunks.range(chunk))]] = True
        rows = marks.nonzero().squeeze(1)
        return rows.int() if num_extended < 2**31 - 1 else rows

    def transfers(self, leader: ChunkedCsc | None = None) -> SourceTransfers:
        """Returns the plan that moves source rows for a pass. Collective at the first call.

        Args:
            leader: the structure whose :attr:`order` the pass has; None: this one.
        """
        leader = self if leader is None else leader
        transfers = self._transfers.get(leader)
        if transfers is None:
            order = leader.order
            transfers = SourceTransfers(
                self.resident.direct_plan,
                len(order),
                lambda batch: self.sources(order[batch]),
                self.switches,
            )
            self._transfers[leader] = transfers
        return transfers

    def reversed(self, source_chunks: Chunks | None = None) -> ChunkedCsc:
        """Returns the edges by the rank and the chunk of their source, kept after the first call.

        Its sources are this structure's destinations. Sums over it add in the order of the
        destinations' internal rows. Collective at the first call.

        Args:
            source_chunks: of the sources; None: the chunks of the destinations, which then must be
                the same nodes.

        Raises:
            ValueError: no `source_chunks` where sources and destinations are other nodes.
        """
        if self._reversed_csc is None:
            if source_chunks is None:
                if self.source_layout is not self.destination_layout:
                    raise ValueError("source_chunks must be given for sources of another type")
                source_chunks = self.chunks
            self._reversed = ReversedEdges(self.resident)
            self._reversed_csc = self.like(self._reversed.structure, source_chunks)
        return self._reversed_csc

    def reverse_edge_rows(self, rows: Tensor) -> Tensor:
        """Returns plain rows of edges in the order of the reversed edges. Collective."""
        self.reversed()
        assert self._reversed is not None
        return self._reversed.exchange_rows(rows)

    def of_destinations(self, layout: RowLayout) -> ChunkedCsc:
        """Returns the edges to selected destinations, in the same chunks. Collective.

        Edge tensors of the result are sorted by destination, too: its :attr:`edge_layout` is a
        selection of this one's, whose `parent_rows` are the local rows of the edges here.

        Args:
            layout: a selection by mask of the destinations: `layout.select_mask(...)`.
        """
        chunks = self.chunks.select(layout)
        rows = layout.parent_rows
        assert rows is not None
        local = self.resident.local
        indptr = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(local.indptr.diff()[rows], 0, out=indptr[1:])
        count = int(indptr[-1])
        narrow = max(count, len(rows)) < 2**31 - 1
        indptr = indptr.int() if narrow else indptr
        # The numbers of the edges would take twice the memory of their sources.
        indices = local.indices.new_empty(count)
        targets = torch.arange(0, count, _PIECE_EDGES, device=rows.device)
        cuts = [*torch.searchsorted(indptr, targets.to(indptr.dtype)).tolist(), len(rows)]
        for first, last in pairwise(cuts):
            edges = slice(*indptr[[first, last]].tolist())
            indices[edges] = local.indices[_edges_to(local, rows[first:last])]
        edge_layout = RowLayout(
            layout.group,
            layout.group.all_gather(count),
            lambda: self.edge_layout.positions[_edges_to(local, rows)],
            parent=self.edge_layout,
            parent_rows=lambda: _edges_to(local, rows),
        )
        resident = PartitionedCsc(
            self.source_layout,
            layout,
            edge_layout,
            self.resident.direct_plan,
            Csc(
                indptr,
                indices,
                local.num_sources,
                max_chunks=count_chunks(indptr),
                check=False,
            ),
            self.resident.mode_choice,
        )
        return self.like(resident, chunks)

    @property
    def _indices(self) -> Tensor:
        return self.resident.local.indices

    def _offsets(self, chunk: int) -> Tensor:
        """Returns the offsets of a chunk's edges, from 0 on."""
        start, stop = self.chunks.range(chunk)
        offsets = self.resident.local.indptr[start : stop + 1]
        first, last = self.edge_chunks.range(chunk)
        offsets = offsets - first if first else offsets
        return offsets.int() if last - first < 2**31 - 1 else offsets

    def _csc(self, chunk: int, indices: Tensor, num_sources: int) -> Csc:
        most_chunks = self._cut_rows[chunk]
        return Csc(self._offsets(chunk), indices, num_sources, max_chunks=most_chunks, check=False)

    def __repr__(self) -> str:
        return f"ChunkedCsc({self.resident}, {self.chunks.count} chunks)"


def _edges_to(csc: Csc, rows: Tensor) -> Tensor:
    """Returns the numbers of the edges to some destinations, in the order of these."""
    starts = csc.indptr[rows].long()
    degrees = csc.indptr[rows + 1].long() - starts
    before = degrees.cumsum(0) - degrees
    count = int(degrees.sum())
    positions = torch.arange(count, device=rows.device)
    return positions.add_((starts - before).repeat_interleave(degrees, output_size=count))
