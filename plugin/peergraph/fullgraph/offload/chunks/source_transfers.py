"""Which source rows move between host, device and ranks for each batch of chunks (HongTu 5).

A batch is one chunk of every rank. The owner of a row loads the row once for all ranks that need
it in a batch, and passes it on; to another machine once for all ranks there. Rows that the batch
before had stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.route import Route
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.offload.chunks.machine_merge import ExchangedRows, merge_batches


@dataclass
class BatchTransfers:
    """The source rows of a batch on this rank, its window.

    The rows of the window are: rows that the batch before had, this rank's rows that are loaded,
    and rows that other ranks send, by rank. Row numbers are int32 where they fit, on the device.
    The window itself is not kept, but made of the one before: :meth:`SourceTransfers.rows`.
    """

    reused: Tensor
    """[reused rows] positions in the window before of the first rows of this window."""
    new: Tensor
    """[loaded and received rows] the other extended rows: first local rows that are loaded, those
    that have left a window before in the pass and then the others, both ascending; then those that
    other ranks send."""
    num_loaded: int
    """How many of them are loaded."""
    again: int
    """How many of them have left a window before."""
    num_leaving: int = 0
    """How many of this rank's rows the next window has not."""
    sources: list[Route] = field(default_factory=list)
    """The routes, one after the other, on which received rows come from their owners; none where no
    rank needs rows of another. They are of positions in the window; without deduplication owners
    send local rows."""
    gradients: list[Route] = field(default_factory=list)
    """The routes on which gradients of the rows that the next window has not go to the owners."""

    @property
    def num_rows(self) -> int:
        """Rows of the window."""
        return self.reused.shape[0] + self.new.shape[0]

    @property
    def loaded(self) -> Tensor:
        """[loaded rows] local rows that are loaded."""
        return self.new[: self.num_loaded]

    @property
    def own_stop(self) -> int:
        """Reused and loaded rows together: the position of the first received row."""
        return self.reused.shape[0] + self.num_loaded

    @property
    def rows_sent(self) -> int:
        """Rows that this rank sends to other ranks."""
        return sum(route.num_sent for route in self.sources)

    @property
    def rows_returned(self) -> int:
        """Rows whose gradients this rank sends to other ranks."""
        return sum(route.num_sent for route in self.gradients)


@dataclass
class RowCounts:
    """Rows of one pass over all batches, on this rank as the owner of rows (HongTu, Table 8)."""

    vanilla: int = 0
    """Rows that ranks need of this rank, once for each rank and batch."""
    distinct: int = 0
    """Rows that any rank needs of this rank, once for each batch."""
    loaded: int = 0
    """Rows that are loaded from the store."""
    sent: int = 0
    """Rows that are sent to other ranks."""
    reused: int = 0
    """Rows that stay on the device from one batch to the next."""


class Switches(NamedTuple):
    """Which ways of moving fewer rows are used (HongTu 5)."""

    deduplicate_ranks: bool = True
    """Whether a row that several ranks need for a batch crosses its owner's link once, and is
    passed on from the window of its owner (5.1, inter-GPU); else the owner loads and sends the row
    for each of them."""
    reuse_chunks: bool = True
    """Whether rows that the previous batch also read stay on the device (intra-GPU)."""
    orders_chunks: bool = True
    """Whether passes that move source rows visit chunks in the order that moves fewest rows over
    the links (5.3); else in their own order."""


ALL_SWITCHES = Switches()


class SourceTransfers:
    """A plan for all batches of a pass. Synchronises; collective to make unless `plan` is empty.

    Args:
        plan: which rows of sources are exchanged over all batches.
        count: of batches, equal on all ranks.
        sources_of: returns the distinct extended rows that a batch of this rank needs, ascending.
        switches: how rows are moved.
    """

    def __init__(
        self,
        plan: HaloPlan,
        count: int,
        sources_of: Callable[[int], Tensor],
        switches: Switches,
    ) -> None:
        self.plan = plan
        """Which rows are exchanged over all batches."""
        self.deduplicate_ranks, self.reuse_chunks, _ = switches
        self.counts = RowCounts()
        """Rows of one pass."""
        self._sources_of = sources_of
        self._requests = self._tell_owners(count)
        self._marks = torch.zeros(plan.num_extended, dtype=torch.bool, device=self._device)
        self._positions = torch.empty(plan.num_extended, dtype=torch.int32, device=self._device)
        self._has_left = torch.zeros(plan.num_local, dtype=torch.bool, device=self._device)
        self.batches: list[BatchTransfers] = []
        """By batch."""
        group = plan.row_layout.processes
        self._merges = (
            self.deduplicate_ranks and group.node_group is not group and not plan.is_empty
        )
        self._sources, self._gradients = list[ExchangedRows](), list[ExchangedRows]()
        self._window = -1, torch.empty(0, dtype=self._dtype, device=self._device)
        for batch in range(count):
            self._add_batch(batch)
        self._finish_batch(count)
        self.untouched = (~self._has_left).nonzero().squeeze(1).to(self._dtype)
        """Local rows that no window has, ascending."""
        if self._merges:
            merged = (merge_batches(plan, rows) for rows in (self._sources, self._gradients))
            for batch, sources, gradients in zip(self.batches, *merged, strict=True):
                batch.sources = sources
                batch.gradients = [route.reversed() for route in reversed(gradients)]
        del self._sources_of, self._requests, self._marks, self._positions, self._has_left
        del self._sources, self._gradients

    @property
    def continues_sums(self) -> bool:
        """Whether a row that enters a window again is loaded with the gradients added before.

        Then a row that leaves a window is written over the stored sum; else it is added to that. A
        row that leaves enters no window of any rank before the batch after next, when its sum has
        been written.
        """
        return self.deduplicate_ranks and self.reuse_chunks

    @property
    def capacity(self) -> int:
        """Rows of the largest window."""
        return max((batch.num_rows for batch in self.batches), default=0)

    def rows(self, number: int) -> Tensor:
        """Returns the extended rows of a batch's window, [window rows].

        Each window is made of the one before, so a pass asks for them in the order of the batches.
        """
        last, rows = self._window
        for following in range(last + 1 if last <= number else 0, number + 1):
            batch = self.batches[following]
            rows = torch.cat([rows.index_select(0, batch.reused), batch.new])
        self._window = number, rows
        return rows

    def leaving(self, number: int) -> Tensor:
        """Returns the positions in a batch's window of own rows that the next window has not.

        Ascending; does not wait for the device.
        """
        batch = self.batches[number]
        stays = torch.zeros(batch.num_rows, dtype=torch.uint8, device=self._device)
        if number + 1 < len(self.batches):
            stays[self.batches[number + 1].reused.long()] = 1
        if not self.plan.is_empty:
            stays.masked_fill_(self.rows(number) >= self.plan.num_local, 1)
        return stays.sort(stable=True).indices[: batch.num_leaving]

    @property
    def _device(self) -> torch.device:
        return self.plan.halo_rows.device

    def _tell_owners(self, count: int) -> list[list[Tensor]]:
        """Returns local rows that a rank needs, ascending, by batch and rank. Collective."""
        plan = self.plan
        layout, rank = plan.row_layout, plan.row_layout.group.rank
        if plan.is_empty:  # on all ranks; some may make no plan, as their rows are on the device
            nothing = torch.empty(0, dtype=self._dtype, device=self._device)
            return [[nothing] * layout.group.world_size] * count
        counts, by_owner = [], []
        for rows in map(self._sources_of, range(count)):
            remote = rows[rows >= plan.num_local]
            counts.append(self._by_owner(remote))
            internal = plan.halo_rows[remote.long() - plan.num_local]
            by_owner.append(split_rows(internal, counts[-1]))
        everyone = layout.group.all_gather(counts)
        sent = [
            torch.cat([parts[owner] for parts in by_owner]) - layout.offsets[owner]
            for owner in range(layout.group.world_size)
        ]
        asked = [[of_each[rank] for of_each in of_rank] for of_rank in everyone]
        received = [plan.halo_rows.new_empty(sum(of_rank)) for of_rank in asked]
        plan.transport.all_to_all(received, sent)
        parts = [
            split_rows(rows.to(self._dtype), of_rank)
            for rows, of_rank in zip(received, asked, strict=True)
        ]
        return [list(of_batch) for of_batch in zip(*parts, strict=True)]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.int32 if self.plan.num_extended < 2**31 - 1 else torch.int64

    def _add_batch(self, number: int) -> None:
        rows, requests = self._sources_of(number), self._requests[number]
        own = rows[rows < self.plan.num_local]
        remote = rows[len(own) :]
        distinct = self._union([own, *requests])
        self.counts.vanilla += len(own) + sum(map(len, requests))
        self.counts.distinct += len(distinct)
        if self.deduplicate_ranks:
            own = distinct
        own_stays, remote_stays = self._in_window(own), self._in_window(remote)
        stays = torch.cat([own[own_stays], remote[remote_stays]])
        positions_before = self._positions[stays.long()]
        self._finish_batch(number, positions_before)
        loaded, received = own[~own_stays], remote[~remote_stays]
        has_left = self._has_left[loaded.long()]
        again = int(has_left.sum())
        loaded = torch.cat([loaded[has_left], loaded[~has_left]])
        new = torch.cat([loaded, received])
        window = torch.cat([stays, new])
        self._positions[window.long()] = torch.arange(
            len(window), dtype=torch.int32, device=window.device
        )
        sent = [self._without(part, part_before) for part, part_before in zip(
            requests, self._requests_before(number), strict=True)]  # fmt: skip
        self.counts.sent += sum(map(len, sent))
        self.counts.reused += len(stays)
        self.counts.loaded += len(loaded)
        if not self.deduplicate_ranks:
            self.counts.loaded += sum(map(len, sent))
        batch = BatchTransfers(positions_before, new, len(loaded), again)
        if self._merges:
            places = self._positions[received.long()]
            self._sources.append(self._exchanged(received, places, sent))
        elif not self.plan.is_empty:
            stored = slice(batch.own_stop, batch.num_rows)
            batch.sources = [self._route(received, stored, sent)]
        self.batches.append(batch)
        self._window = number, window

    def _finish_batch(self, following: int, positions_before: Tensor | None = None) -> None:
        """Says which rows leave the last batch; called with the next batch's reused positions."""
        if not self.batches:
            return
        batch, number = self.batches[-1], following - 1
        window = self._window[1]
        stays = torch.zeros(len(window), dtype=torch.bool, device=self._device)
        if positions_before is not None:
            stays[positions_before.long()] = True
        leaving = (~stays).nonzero().squeeze(1)
        rows = window[leaving]
        is_own = rows < self.plan.num_local
        own = rows[is_own].long()
        batch.num_leaving = len(own)
        self._has_left[own] = True
        rows, order = rows[~is_own].sort()
        returned = leaving[~is_own][order].to(self._dtype)
        requests = self._requests[number]
        after = self._requests[following] if following < len(self._requests) else None
        if after is not None and self.reuse_chunks:
            requests = [self._difference(*pair) for pair in zip(requests, after, strict=True)]
        if self._merges:
            self._gradients.append(self._exchanged(rows, returned, requests))
        elif not self.plan.is_empty:
            batch.gradients = [self._route(rows, returned, requests).reversed()]

    def _route(self, remote: Tensor, stored: Tensor | slice, sent: list[Tensor]) -> Route:
        """Returns the route from owners to this rank's window.

        Args:
            remote: extended rows of other ranks, ascending.
            stored: their positions in the window.
            sent: for each rank, local rows of this one that it needs.
        """
        if self.deduplicate_ranks:
            sent = self._in_positions(sent)
        return Route.of_lists(self.plan.transport, sent, self._by_owner(remote), stored)

    def _exchanged(self, remote: Tensor, stored: Tensor, sent: list[Tensor]) -> ExchangedRows:
        """Returns what :meth:`_route` is made of, for routes by machine."""
        internal = self.plan.halo_rows[remote.long() - self.plan.num_local]
        return ExchangedRows(internal, stored, sent, self._in_positions(sent))

    def _in_positions(self, rows: list[Tensor]) -> list[Tensor]:
        """Returns positions in the last window of lists of local rows."""
        return [self._positions[part.long()] for part in rows]

    def _requests_before(self, number: int) -> list[Tensor]:
        if number == 0:
            return [part[:0] for part in self._requests[0]]
        return self._requests[number - 1]

    def _without(self, rows: Tensor, before: Tensor) -> Tensor:
        return self._difference(rows, before) if self.reuse_chunks else rows

    def _in_window(self, rows: Tensor) -> Tensor:
        """Returns which rows the last batch has and this one keeps, [rows] bool."""
        if not self.reuse_chunks or not self.batches:
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return self._is_among(rows, self._window[1])

    def _is_among(self, rows: Tensor, others: Tensor) -> Tensor:
        self._marks[others.long()] = True
        mask = self._marks[rows.long()]
        self._marks[others.long()] = False
        return mask

    def _difference(self, rows: Tensor, others: Tensor) -> Tensor:
        return rows[~self._is_among(rows, others)]

    def _union(self, parts: list[Tensor]) -> Tensor:
        """Returns distinct local rows, ascending."""
        for part in parts:
            self._marks[part.long()] = True
        rows = self._marks[: self.plan.num_local].nonzero().squeeze(1)
        self._marks[rows] = False
        return rows.to(self._dtype)

    def _by_owner(self, remote: Tensor) -> list[int]:
        """Returns how many of ascending extended rows of other ranks belong to each rank."""
        starts = torch.tensor([0, *self.plan.halo_counts], device=remote.device).cumsum(0)
        bounds = (starts + self.plan.num_local).to(remote.dtype)
        return torch.searchsorted(remote, bounds).diff().tolist()

    def __repr__(self) -> str:
        return f"SourceTransfers({len(self.batches)} batches, {self.counts})"
