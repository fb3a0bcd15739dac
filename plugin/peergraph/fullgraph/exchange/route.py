"""Routes: which rows each rank sends to each other, and where rows that come are stored."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.autograd import Function
from peergraph.fullgraph.exchange.side_by_side import AllToAll, Gather, Steps, run_alone
from peergraph.fullgraph.exchange.transport import Pending, Transport, split_rows
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.layout.row_layout import RowLayout

ALL = slice(None)
"""All rows, in their order."""

Map = Callable[..., Tensor]

_NAME = "an exchange of rows"


class Route(NamedTuple):
    """Which rows this rank sends to each rank, and where it stores those that come from each.

    All ranks have one, and call its methods together; none is differentiable but
    :func:`move_rows`. Rows are [rows, *features] of any dtype that is the same on all ranks.

    Args:
        transport: of the ranks.
        sent: the rows that are sent, those to rank 0 first, then those to rank 1, ...: [rows]
            integers on the device, or a range of rows.
        sent_counts: how many of them go to each rank.
        received_counts: how many rows come from each rank.
        stored: where they are stored, in the same order: [rows] integers, or a range of rows.
    """

    transport: Transport
    sent: Tensor | slice
    sent_counts: Sequence[int]
    received_counts: Sequence[int]
    stored: Tensor | slice = ALL

    @classmethod
    def to_ranks(cls, group: Ranks, ranks: Tensor) -> Steps[Route]:
        """Makes the route on which each row goes to a rank, and rows come in their order.

        Synchronises.

        Args:
            group: the ranks.
            ranks: [rows of this rank] int64: the rank that each row goes to.
        """
        world_size = group.world_size
        # Radix sort reads only the bits of the dtype.
        keys = ranks.to(torch.uint8) if world_size <= 256 else ranks
        sent = torch.bincount(ranks, minlength=world_size).tolist()
        received = [of_rank[group.rank] for of_rank in (yield Gather(sent))]
        return cls(Transport.of(group), torch.sort(keys, stable=True).indices, sent, received)

    @classmethod
    def from_owners(cls, layout: RowLayout, rows: Tensor) -> Steps[tuple[Route, list[list[int]]]]:
        """Makes the route on which rows come from the ranks that hold them, in their order.

        Synchronises.

        Args:
            layout: which rank holds which rows.
            rows: [rows that this rank needs] int64 internal rows, distinct and ascending, on the
                group's device.

        Returns:
            The route, and for each rank how many rows of each rank it needs.
        """
        offsets = torch.tensor([*layout.offsets, layout.size], device=rows.device)
        bounds = torch.searchsorted(rows, offsets).diff()
        counts, rank = bounds.tolist(), layout.group.rank
        demand = yield Gather(counts)
        to_owners = cls(Transport.of(layout.group), ALL, counts, [row[rank] for row in demand])
        sent = yield from to_owners.steps(rows - offsets[:-1].repeat_interleave(bounds))
        return to_owners.reversed()._replace(sent=sent), demand

    @classmethod
    def of_lists(
        cls,
        transport: Transport,
        sent: Sequence[Tensor],
        received_counts: Sequence[int],
        stored: Tensor | slice,
    ) -> Route:
        """Returns the route on which the rows `sent[r]` go to rank r."""
        return cls(transport, torch.cat(list(sent)), list(map(len, sent)), received_counts, stored)

    @property
    def num_sent(self) -> int:
        """Rows that this rank sends, those to itself among them."""
        return sum(self.sent_counts)

    @property
    def num_received(self) -> int:
        """Rows that this rank gets."""
        return sum(self.received_counts)

    @property
    def sent_by_rank(self) -> list[Tensor]:
        """The rows that go to each rank, where they are listed."""
        assert isinstance(self.sent, Tensor)
        return split_rows(self.sent, self.sent_counts)

    def reversed(self) -> Route:
        """Returns the route on which stored rows go back to where they came from."""
        counts = self.received_counts, self.sent_counts
        return Route(self.transport, self.stored, *counts, self.sent)

    def pack(self, rows: Tensor) -> Tensor:
        """Returns the rows that are sent, [num_sent, *features]. Not collective."""
        if isinstance(self.sent, slice):
            return rows[self.sent].contiguous()
        return rows.index_select(0, self.sent)

    def exchange(self, rows: Tensor, name: str = _NAME) -> Tensor:
        """Returns the rows that come, [num_received, *features], in the order of the ranks."""
        packed = self.pack(rows)
        return self.transport.exchange_rows(packed, self.sent_counts, self.received_counts, name)

    def exchange_by_rank(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns for each rank where its rows are stored, and the rows that come from it."""
        assert isinstance(self.stored, Tensor)
        return list(zip(self.split(self.stored), self.split(self.exchange(rows)), strict=True))

    def steps(self, rows: Tensor) -> Steps[Tensor]:
        """Does as :meth:`exchange`, beside other computations."""
        if self.transport.group.world_size == 1:
            return self.pack(rows)
        received = rows.new_empty((self.num_received, *rows.shape[1:]))
        yield AllToAll(self.split(received), split_rows(self.pack(rows), self.sent_counts))
        return received

    def split(self, received: Tensor) -> list[Tensor]:
        """Returns the rows that came from each rank, as views."""
        return split_rows(received, self.received_counts)

    def start(self, packed: Tensor, received: Tensor, name: str = _NAME) -> Pending:
        """Starts an exchange without rows of a rank for itself: see :meth:`Transport.start`.

        Args:
            packed: [num_sent, *features] what :meth:`pack` returns.
            received: [num_received, *features], contiguous, which takes the rows that come.
            name: of the exchange, for errors.
        """
        self.transport.announce(name, packed)
        rank, world_size = self.transport.group.rank, self.transport.group.world_size
        peers = [(rank + step) % world_size for step in range(1, world_size)]
        outputs = self.split(received)
        inputs = split_rows(packed, self.sent_counts)
        return self.transport.start(
            {r: outputs[r] for r in reversed(peers)}, {r: inputs[r] for r in peers}
        )

    def copy(self, packed: Tensor, out: Tensor, name: str = _NAME) -> None:
        """Exchanges rows, and stores those that come.

        Args:
            packed: [num_sent, *features] what :meth:`pack` returns.
            out: [rows, *features], contiguous, which takes the rows that come.
            name: of the exchange, for errors.
        """
        if isinstance(self.stored, slice):
            inputs = split_rows(packed, self.sent_counts)
            self.transport.all_to_all(self.split(out[self.stored]), inputs, name)
            return
        received = self.transport.exchange_rows(
            packed, self.sent_counts, self.received_counts, name
        )
        out.index_copy_(0, self.stored.long(), received)

    def move(self, rows: Tensor) -> Tensor:
        """Returns the rows that come where they are stored, [num_received, *features]."""
        received = self.exchange(rows)
        if isinstance(self.stored, slice):
            return received
        return torch.empty_like(received).index_copy_(0, self.stored, received)


def move_rows(rows: Tensor, route: Route) -> Tensor:
    """Returns what :meth:`Route.move` returns. Collective; differentiable."""
    return linear(rows, route.move, route.reversed().move)


def linear(rows: Tensor, map_rows: Map, transposed: Map, *constants: Tensor | None) -> Tensor:
    """Returns what a linear map of rows returns. Differentiable in the rows, as often as one likes.

    Args:
        rows: what is mapped.
        map_rows, transposed: the map and its transpose, called with rows and the constants, without
            autograd.
        constants: tensors that the map reads, which have no gradient.
    """
    mapped: Tensor = _Linear.apply(rows, map_rows, transposed, *constants)
    return mapped


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, map_rows: Map, transposed: Map, *constants: Tensor | None
    ) -> Tensor:
        ctx.maps = transposed, map_rows
        ctx.save_for_backward(*constants)
        mapped = map_rows(rows, *constants)
        return mapped.view_as(mapped) if mapped is rows else mapped  # no input may be returned

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        constants = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradient = linear(grad, *ctx.maps, *constants)
        else:
            gradient = ctx.maps[0](grad, *constants)
        return gradient, None, None, *[None] * len(constants)


_MAX_KEPT = 16  # plans of a layout

_plans: WeakKeyDictionary[RowLayout, OrderedDict[bytes, RowRequests]] = WeakKeyDictionary()


class RowRequests:
    """A plan for the rows of `layout` that each rank names by its own ids; ids may repeat.

    A row that a rank names several times travels once. Sums over repeated ids have a fixed order.

    Args:
        layout: which rank holds which rows.
        ids: k integers of this rank, of any shape: the user's rows; other ranks have others.

    Raises:
        IndexError: an id of a rank is not one of -size..size - 1; on all ranks.
    """

    def __init__(self, layout: RowLayout, ids: Tensor) -> None:
        group, fault = layout.group, ""
        try:
            own_ids = layout.positive_ids(ids.detach().reshape(-1))
        except IndexError as error:
            fault = str(error)
        for rank, text in enumerate(group.all_gather(fault)):
            if text:
                raise IndexError(f"{text} on rank {rank}")
        internal_rows = layout.internal_rows[own_ids]
        distinct, inverse = torch.unique(internal_rows, return_inverse=True)
        self._inverse = inverse.to(group.device)
        with group.collective("requests of rows"):
            steps = Route.from_owners(layout, distinct.to(group.device))
            self._route, _ = run_alone(group, steps)

    @classmethod
    def of(cls, layout: RowLayout, ids: Tensor) -> RowRequests:
        """Returns the plan for these ids; ids that are equal on every rank have the same plan.

        Collective.
        """
        digests = layout.digests(ids)
        key = b"".join(digests)
        plans = _plans.setdefault(layout, OrderedDict())
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = cls(layout, ids)
            if len(plans) > _MAX_KEPT:
                plans.popitem(last=False)
        return plan

    def fetch(self, rows: Tensor) -> Tensor:
        """Returns the named rows of all ranks' `rows`, [k, ...], by id. Collective."""
        return self._route.exchange(rows).index_select(0, self._inverse)

    def add(self, values: Tensor, rows: Tensor) -> None:
        """Adds values [k, ...] to the rows that their ids name. Collective.

        Ranks' values come in rank order, so results are equal from run to run.

        Args:
            values: [k, ...], of the dtype of `rows`.
            rows: [layout.local_count, ...], this rank's rows, which are changed.
        """
        distinct = values.new_zeros((self._route.num_received, *values.shape[1:]))
        distinct.index_put_((self._inverse,), values, accumulate=True)
        for places, part in self._route.reversed().exchange_by_rank(distinct):
            rows.index_add_(0, places, part)
