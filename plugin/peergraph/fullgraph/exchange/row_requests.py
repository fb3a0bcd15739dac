"""Rows of other ranks that a rank names by the user's ids, and values reduced into them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.row_layout import RowLayout

Reduction = Literal["sum", "prod", "amax", "amin"]

_MAX_KEPT = 16  # plans of a layout

_plans: WeakKeyDictionary[RowLayout, OrderedDict[bytes, RowRequests]] = WeakKeyDictionary()


class RowRequests:
    """A plan for the rows of `layout` that each rank names by its own ids; ids may repeat.

    A row that a rank names several times travels once. Sums over repeated ids have a fixed order.

    Args:
        layout: which rank holds which rows.
        ids: k integers of this rank, of any shape: the user's rows; other ranks have others.

    Raises:
        IndexError: an id is not one of -size..size - 1.
    """

    def __init__(self, layout: RowLayout, ids: Tensor) -> None:
        group = layout.group
        self._transport = Transport.of(group)
        owner, local_rows = layout.locate(ids.detach().reshape(-1))
        internal_rows = torch.tensor(layout.offsets, device="cpu")[owner] + local_rows
        distinct, inverse = torch.unique(internal_rows, return_inverse=True)
        owner, numbers = layout.owners_of(distinct)
        # How many rows this rank asks of each, and each asks of this one.
        self._asked = torch.bincount(owner, minlength=group.world_size).tolist()
        with group.collective("requests of rows"):
            self._given = [asked[group.rank] for asked in group.all_gather(self._asked)]
        self._inverse = inverse.to(group.device)
        self._rows = self._sent_to_owners(numbers.to(group.device))

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
        """Returns the named rows, [k, ...], in the order of the ids. Collective.

        Args:
            rows: [layout.local_count, ...], this rank's rows.
        """
        requested = rows.index_select(0, self._rows)
        received = self._transport.exchange_rows(requested, self._given, self._asked)
        return received.index_select(0, self._inverse)

    def reduce(self, values: Tensor, rows: Tensor, reduction: Reduction = "sum") -> None:
        """Reduces values [k, ...] into the rows that their ids name. Collective.

        Ranks' values come in rank order, so results are equal from run to run.

        Args:
            values: [k, ...], of the dtype of `rows`.
            rows: [layout.local_count, ...], this rank's rows, which are changed.
        """
        distinct = values.new_empty((sum(self._asked), *values.shape[1:]))
        if reduction == "sum":
            distinct.zero_().index_put_((self._inverse,), values, accumulate=True)
        else:
            index = _spread(self._inverse, values)
            distinct.scatter_reduce_(0, index, values, reduction, include_self=False)
        for places, part in self._by_rank(self._sent_to_owners(distinct)):
            if reduction == "sum":
                rows.index_add_(0, places, part)
            else:
                rows.scatter_reduce_(0, _spread(places, part), part, reduction)

    def write(self, values: Tensor, rows: Tensor) -> None:
        """Copies values [k, ...] to the rows that their ids name. Collective.

        Of values for the same row, that of the last rank is taken.
        """
        distinct = values.new_empty((sum(self._asked), *values.shape[1:]))
        distinct.index_put_((self._inverse,), values)
        for places, part in self._by_rank(self._sent_to_owners(distinct)):
            rows.index_copy_(0, places, part)

    def _sent_to_owners(self, distinct: Tensor) -> Tensor:
        """Returns what ranks send to this one, of a value for each distinct row that they name."""
        return self._transport.exchange_rows(distinct, self._asked, self._given)

    def _by_rank(self, received: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the local rows that each rank names, and what it sends for them."""
        parts = (torch.split(rows, self._given) for rows in (self._rows, received))
        return zip(*parts, strict=True)


def _spread(index: Tensor, values: Tensor) -> Tensor:
    return index.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
