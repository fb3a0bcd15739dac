"""Rows of other ranks that a rank names by the user's ids, and values added to them."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.route import Route
from peergraph.fullgraph.exchange.side_by_side import run_alone
from peergraph.fullgraph.layout.row_layout import RowLayout

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
        internal_rows = layout.internal_rows[layout.positive_ids(ids.detach().reshape(-1))]
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
        """Returns the named rows, [k, ...], in the order of the ids. Collective.

        Args:
            rows: [layout.local_count, ...], this rank's rows.
        """
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
