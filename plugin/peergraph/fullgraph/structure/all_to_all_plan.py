"""An all-to-all of rows between ranks, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.transport import Transport


class AllToAllPlan(NamedTuple):
    """Which rows each rank sends to each other rank, and where it stores those that it receives."""

    transport: Transport
    send_counts: list[int]
    """Rows that this rank sends, by the rank that receives them."""
    receive_counts: list[int]
    """Rows that this rank receives, by the rank that sends them."""
    send_order: Tensor | None
    """[rows of this rank] int64: rows in the order in which they are sent; None: in their order."""
    positions: Tensor | None
    """[received rows] int64: where each received row is stored; None: in the order of arrival."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns the rows that this rank receives. Collective. Without autograd."""
        order = self.send_order
        sent = rows.contiguous() if order is None else rows.index_select(0, order)
        received = self.transport.exchange_rows(sent, self.send_counts, self.receive_counts)
        if self.positions is None:
            return received
        return torch.empty_like(received).index_copy_(0, self.positions, received)

    def reversed(self) -> AllToAllPlan:
        """Returns the plan that sends received rows back to the ranks that they came from."""
        return AllToAllPlan(
            self.transport,
            self.receive_counts,
            self.send_counts,
            self.positions,
            self.send_order,
        )


def all_to_all_rows(rows: Tensor, plan: AllToAllPlan) -> Tensor:
    """Returns the rows that this rank receives. Collective; differentiable.

    Args:
        rows: [rows of this rank, *features].
        plan: which rows go where.
    """
    received: Tensor = _AllToAllRows.apply(rows, plan)
    return received


class _AllToAllRows(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, plan: AllToAllPlan) -> Tensor:
        ctx.plan = plan
        return plan(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_to_all_rows(grad, ctx.plan.reversed()), None
