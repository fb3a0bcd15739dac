"""Exchange of the distinct rows that ranks need of each other (the halo)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import group_by
from peergraph.fullgraph.exchange.route import Route, linear
from peergraph.fullgraph.exchange.side_by_side import Steps, run_alone
from peergraph.fullgraph.exchange.transport import Pending, Transport
from peergraph.fullgraph.layout.row_layout import RowLayout

# The names of exchanges in errors.
ROWS_OF_OTHERS = "an exchange of rows that other ranks need"
SUMS_FOR_OWNERS = "an exchange of sums of other ranks' rows (gradients)"

_PIECE = 1 << 24  # rows that are marked at a time


class Halo(ABC):
    """Which rows of other ranks this rank needs, and how they get here.

    Extended rows are this rank's rows, then rows of other ranks. The methods that move rows are
    collective, and take rows [rows, *features] of any dtype that is the same on all ranks.

    Args:
        layout: the rows of all ranks.
        halo_rows: [rows of other ranks] int64 internal row numbers of the extended rows after this
            rank's.
    """

    def __init__(self, layout: RowLayout, halo_rows: Tensor) -> None:
        self.transport = Transport.of(layout.group)
        self.row_layout = layout
        self.halo_rows = halo_rows
        self.num_local = layout.local_count
        self.num_extended = self.num_local + len(halo_rows)

    network_rows = 0
    """Rows of other machines that this rank imports for its machine."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether no rank needs a row of another: extended rows are the local rows."""

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Returns the extended rows of `x` [local rows, *features]; `x` itself for an empty plan.

        Collective. Without autograd.
        """

    @abstractmethod
    def add_to_owners(self, extended: Tensor) -> Tensor:
        """Returns each local row plus the extended rows of it that other ranks have.

        The transpose of :meth:`gather`. Sums are in a fixed order, so that two runs are equal bit
        for bit, and are kept in float32 for half types. Collective. Without autograd.

        Args:
            extended: [extended rows, *features].

        Returns:
            [local rows, *features]; `extended` itself for an empty plan.
        """


class HaloPlan(Halo):
    """Which rows of other ranks this rank needs, and which of its rows other ranks need.

    Each rank gets rows from their owners. Extended rows are this rank's rows, then its halo: the
    rows of other ranks, grouped by owner in rank order and ascending within an owner. Made by
    :meth:`make`.

    Args:
        layout: the rows of all ranks.
        halo_rows: [sum of this rank's `halo_counts`] int64 internal row numbers of the halo,
            ascending.
        route: from local rows, those that a rank needs ascending, to the halo.
        demand: ``demand[r][q]`` distinct rows of rank q that rank r needs, 0 for r = q.
    """

    def __init__(
        self,
        layout: RowLayout,
        halo_rows: Tensor,
        route: Route,
        demand: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(layout, halo_rows)
        self.demand = demand
        self.halo_counts = demand[layout.group.rank]
        self.route = route._replace(stored=slice(self.num_local, self.num_extended))
        """From local rows to the halo of extended rows."""
        self._returned: EdgeMatrix | None = None

    @property
    def send_rows(self) -> Tensor:
        """The local rows that other ranks need, by rank."""
        assert isinstance(self.route.sent, Tensor)
        return self.route.sent

    @classmethod
    def make(cls, layout: RowLayout, internal_rows: Tensor) -> tuple[HaloPlan, Tensor]:
        """Runs :meth:`steps` alone. Collective."""
        return run_alone(layout.group, cls.steps(layout, internal_rows))

    @classmethod
    def steps(cls, layout: RowLayout, internal_rows: Tensor) -> Steps[tuple[HaloPlan, Tensor]]:
        """Makes the plan for rows that this rank needs, and their extended rows. Collective.

        Args:
            layout: the rows of all ranks.
            internal_rows: [k] int32 or int64 internal row numbers, in any order, with duplicates,
                own rows among them.

        Returns:
            The plan, and [k] the extended row of each; int32 if all fit.

        Raises:
            IndexError: a row out of range, on the rank that has it.
        """
        rows = internal_rows.to(layout.group.device)
        check_rows(layout, rows)
        if layout.group.world_size == 1:
            none = torch.empty(0, dtype=torch.int64, device=rows.device)
            narrow = torch.int32 if layout.size < 2**31 - 1 else torch.int64
            route = Route(Transport.of(layout.group), none, [0], [0])
            return cls(layout, none, route, [[0]]), rows.to(narrow)
        halo = mark_halo(layout, rows).nonzero().squeeze(1)
        extended_row = number_extended(layout, halo)
        route, demand = yield from Route.from_owners(layout, halo)
        return cls(layout, halo, route, demand), extended_row.index_select(0, rows)

    @property
    def is_empty(self) -> bool:
        """See :attr:`Halo.is_empty`."""
        return not any(map(any, self.demand))

    def gather(self, x: Tensor) -> Tensor:
        """See :meth:`Halo.gather`."""
        if self.is_empty:
            return x
        extended = x.new_empty(self.num_extended, *x.shape[1:])
        extended[: self.num_local].copy_(x)
        self.fill_halo(extended)
        return extended

    def fill_halo(self, extended: Tensor) -> None:
        """Writes the halo to contiguous extended rows that have the local rows. Collective."""
        if not self.is_empty:
            self.route.copy(self.route.pack(extended), extended, ROWS_OF_OTHERS)

    def start_halo(self, x: Tensor, halo: Tensor) -> Pending:
        """Starts to write the halo of `x` [local rows, *features] to `halo`. Collective.

        See :meth:`Transport.start`; the current stream or this thread must wait for the exchange.
        """
        return self.route.start(self.route.pack(x), halo, ROWS_OF_OTHERS)

    def start_return(self, halo: Tensor) -> tuple[Pending, Tensor]:
        """Starts to send extended rows after this rank's to their owners. Collective.

        Returns:
            The exchange, and the rows that come, for :meth:`add_returned` once it is waited for.
        """
        received = halo.new_empty(len(self.send_rows), *halo.shape[1:])
        return self.route.reversed().start(halo, received, SUMS_FOR_OWNERS), received

    def add_to_owners(self, extended: Tensor) -> Tensor:
        """See :meth:`Halo.add_to_owners`; peers are added in rank order."""
        if self.is_empty:
            return extended
        received = self.route.reversed().exchange(extended, SUMS_FOR_OWNERS)
        out = extended[: self.num_local].clone(memory_format=torch.contiguous_format)
        self.add_returned(out, received)
        return out

    def add_returned(self, out: Tensor, received: Tensor) -> None:
        """Adds rows that other ranks have returned to local rows, peers in rank order.

        Args:
            out: [local rows, *features], contiguous, which is changed.
            received: [rows to send, *features].
        """
        if received.numel() == 0:
            return
        if received.dtype in FEATURE_DTYPES:
            matrix = self._returned_rows()
            matrix.add_messages(_as_matrix(out), _as_matrix(received), None, "copy_u")
            return
        parts = self.route.reversed().split(received)
        for rows, part in zip(self.route.sent_by_rank, parts, strict=True):
            out.index_add_(0, rows, part)

    def _returned_rows(self) -> EdgeMatrix:
        """Returns the matrix that adds returned rows to local rows, peers in rank order."""
        if self._returned is None:
            count = len(self.send_rows)
            positions = torch.arange(count, device=self.send_rows.device)
            indptr, indices, _ = group_by(
                self.send_rows, positions, self.num_local, count, torch.int64
            )
            self._returned = EdgeMatrix(indptr, indices, count)
        return self._returned

    def __repr__(self) -> str:
        return (
            f"HaloPlan(rank {self.row_layout.group.rank}, {self.num_local} local rows, "
            f"{sum(self.halo_counts)} halo rows, {len(self.send_rows)} rows to send)"
        )


def add_to_owners(plan: Halo, extended: Tensor) -> Tensor:
    """Returns sums by local row: :meth:`Halo.add_to_owners`, differentiable. Collective."""
    return linear(extended, plan.add_to_owners, plan.gather)


def _as_matrix(rows: Tensor) -> Tensor:
    """Returns contiguous rows as a matrix [rows, values] that shares their memory."""
    return rows.view(rows.shape[0], -1)


def check_rows(layout: RowLayout, rows: Tensor) -> None:
    """Raises IndexError for internal rows that the layout does not have."""
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < layout.size:
        raise IndexError(
            f"internal_rows must be in 0..{layout.size - 1}, got {int(rows.min())} to "
            f"{int(rows.max())}"
        )


def mark_halo(layout: RowLayout, rows: Tensor) -> Tensor:
    """Returns a mask ``[rows of all ranks]`` of those internal rows that other ranks have."""
    is_halo = torch.zeros(layout.size, dtype=torch.bool, device=rows.device)
    for piece in torch.split(rows, _PIECE):
        is_halo[piece.long()] = True
    is_halo[layout.rows_of(layout.group.rank)] = False
    return is_halo


def number_extended(layout: RowLayout, halo_rows: Tensor) -> Tensor:
    """Returns the extended row of each internal row, for local rows and the halo; int32 where all
    extended rows fit.

    Args:
        halo_rows: internal rows, in the order of the halo.
    """
    num_local, device = layout.local_count, halo_rows.device
    num_extended = num_local + len(halo_rows)
    dtype = torch.int32 if num_extended < 2**31 - 1 else torch.int64
    extended_row = torch.empty(layout.size, dtype=dtype, device=device)
    own = layout.rows_of(layout.group.rank)
    extended_row[own] = torch.arange(num_local, dtype=dtype, device=device)
    extended_row[halo_rows] = torch.arange(num_local, num_extended, dtype=dtype, device=device)
    return extended_row
