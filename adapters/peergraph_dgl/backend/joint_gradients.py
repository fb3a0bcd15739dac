"""Gradients of an operation over several relations, which DGL computes as one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def join_gradients(operands: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Makes the operands inputs of one autograd function, as they are in DGL.

    If a gradient reaches one operand, the others get zeros instead of None, although their results
    were not used.
    """
    inputs = [x for x in operands if x is not None and x.requires_grad]
    if len(inputs) < 2 or not torch.is_grad_enabled():
        return list(operands)
    joined = dict(zip(map(id, inputs), _Identity.apply(*inputs), strict=True))  # type: ignore[no-untyped-call]
    return [joined.get(id(x), x) for x in operands]


class _Identity(torch.autograd.Function):
    """Returns its inputs; torch passes zeros to `backward` for outputs without a gradient."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in operands)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads
