"""Gradients of operations on several relations, which are one function to DGL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def as_inputs_of_one(operands: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The operands, such that a gradient of one is a gradient of all.

    An operand whose results were not used gets zeros instead of None, as an input of DGL's one
    function for all relations does.
    """
    wanted = [x for x in operands if x is not None and x.requires_grad]
    if len(wanted) < 2 or not torch.is_grad_enabled():
        return list(operands)
    replaced = dict(zip(map(id, wanted), _Together.apply(*wanted), strict=True))  # type: ignore[no-untyped-call]
    return [replaced.get(id(x), x) for x in operands]


class _Together(torch.autograd.Function):
    """The identity; torch gives it zeros for outputs that have no gradient."""

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in operands)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads
