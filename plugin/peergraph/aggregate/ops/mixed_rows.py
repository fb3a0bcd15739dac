"""Rows of a layer's result, mixed with the nodes' own rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import once_differentiable


def mix_rows(share: Tensor, rows: Tensor, own: Tensor) -> Tensor:
    """Returns ``share * rows + (1 - share) * own``.

    The backward pass takes fewer operations than that of autograd. Differentiable once.

    Args:
        share: [1].
        rows: [rows, columns], or one row [columns] for all.
        own: [rows, columns].
    """
    mixed: Tensor = _Mix.apply(share, rows, own)  # type: ignore[no-untyped-call]
    return mixed


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, rows: Tensor, own: Tensor) -> Tensor:
        rest = 1 - share
        ctx.save_for_backward(share, rest, rows, own)
        return share * rows + rest * own

    @staticmethod
    @once_differentiable("a layer that mixes in own rows")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share, rest, rows, own = ctx.saved_tensors
        needs = ctx.needs_input_grad
        of_share = ((rows - own) * grad).sum().view(share.shape) if needs[0] else None
        of_rows = (share * grad).sum_to_size(rows.shape) if needs[1] else None
        return of_share, of_rows, rest * grad if needs[2] else None
