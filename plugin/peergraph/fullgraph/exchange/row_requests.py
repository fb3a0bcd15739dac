"""Rows of other ranks that a rank names by the user's ids, and values reduced into them."""

from __future__ import annotations

from collections import OrderedDict
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
        offsets = torch.tensor(layout.offsets, device="cpu")
        distinct, inverse = torch.unique(offsets[owner] + local_rows, return_inverse=True)
        owner = torch.searchsorted(offsets, distinct, right=True) - 1
        numbers = distinct - offsets[owner]
        # How many rows this rank asks of each, and each asks of this one.
        self._asked = torch.bincount(owner, minlength=group.world_size).tolist()
        with group.collective("requests of rows"):
            self._given = [asked[group.rank] for asked in group.all_gather(self._asked)]
        self._inverse = inverse.to(group.device)
        self._rows = torch.empty(sum(self._given), dtype=torch.int64, device=group.device)
        self._exchange(numbers.to(group.device), self._rows, self._asked, self._given)

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
        received = rows.new_empty((sum(self._asked), *rows.shape[1:]))
        self._exchange(requested, received, self._given, self._asked)
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
        received = values.new_empty((sum(self._given), *values.shape[1:]))
        self._exchange(distinct, received, self._asked, self._given)
        start = 0
        for count in self._given:
            part, places = received[start : start + count], self._rows[start : start + count]
            start += count
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
        received = values.new_empty((sum(self._given), *values.shape[1:]))
        self._exchange(distinct, received, self._asked, self._given)
        start = 0
        for count in self._given:
            rows.index_copy_(0, self._rows[start : start + count], received[start : start + count])
            start += count

    def _exchange(
        self, sent: Tensor, received: Tensor, sent_counts: list[int], received_counts: list[int]
    ) -> None:
        self._transport.all_to_all(
            list(torch.split(received, received_counts)), list(torch.split(sent, sent_counts))
        )


def _spread(index: Tensor, values: Tensor) -> Tensor:
    return index.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
