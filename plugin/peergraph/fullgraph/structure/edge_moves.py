"""How rows of edges travel to the ranks that have the reversed edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport, split_rows


class EdgeMoves(NamedTuple):
    """The way of rows to the ranks that get them."""

    transport: Transport
    sent: list[int]
    """Rows of this rank by the rank that gets them."""
    received: list[int]
    """Rows that this rank gets, by rank."""
    order: Tensor | None
    """[rows of this rank] rows in the order in which they are sent; None: as they are."""
    places: Tensor | None
    """[rows that it gets] where each is stored; None: in the order in which they come."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns the rows that this rank gets. Collective."""
        rows = rows.contiguous() if self.order is None else rows.index_select(0, self.order)
        found = rows.new_empty(sum(self.received), *rows.shape[1:])
        self.transport.all_to_all(split_rows(found, self.received), split_rows(rows, self.sent))
        if self.places is None:
            return found
        return torch.empty_like(found).index_copy_(0, self.places, found)

    def reversed(self) -> EdgeMoves:
        """Returns the moves in the other direction."""
        return EdgeMoves(self.transport, self.received, self.sent, self.places, self.order)


def move_rows(rows: Tensor, moves: EdgeMoves) -> Tensor:
    """Returns the rows that this rank gets. Collective; differentiable."""
    moved: Tensor = _MoveRows.apply(rows, moves)  # type: ignore[no-untyped-call]
    return moved


class _MoveRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, moves: EdgeMoves) -> Tensor:
        ctx.moves = moves
        return moves(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return move_rows(grad, ctx.moves.reversed()), None
