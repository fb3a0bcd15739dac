"""Rows that follow the first ones of a result: products of other nodes' own features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.row_products import add_product, multiply, product_of_columns
from peergraph.aggregate.ops.typed_sums import TypedResult
from peergraph.autograd import Function


def append_products(
    result: TypedResult, x: Tensor, rows: slice, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Returns the first rows of a result, then ``x[rows] @ weight.T + bias``, in one tensor.

    Neither they nor their gradients are copied, but for the first rows. Differentiable any number
    of times.

    Args:
        result: from a typed layer. Its `gradients`, if all rows are there behind this, takes the
            gradient of `x` to the layer, which adds it to its own.
        x: [nodes, in].
        rows: of `x`.
        weight: [out, in] of the result's dtype.
        bias: [out] likewise.
    """
    first, gradients = result.first, result.gradients
    count = first.shape[0] + rows.stop - rows.start
    if gradients is not None and gradients.shape[0] != count:
        gradients = None
    joined: Tensor = _AppendedProducts.apply(first, gradients, x, weight, bias, rows)
    return joined


class _AppendedProducts(Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        gradients: Tensor | None,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: slice,
    ) -> Tensor:
        ctx.rows, ctx.count, ctx.is_whole = rows, first.shape[0], gradients is not None
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[3] else None, weight if needs[2] else None)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        chosen = x[rows].to(first.dtype)
        joined = first.new_empty(ctx.count + chosen.shape[0], first.shape[1])
        of_first, of_chosen = joined.split_with_sizes([ctx.count, chosen.shape[0]])
        of_first.copy_(first)
        multiply(chosen, weight.t(), of_chosen, bias)
        return joined

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs, rows = ctx.needs_input_grad, ctx.rows
        last = grad[ctx.count :]
        of_x = of_weight = None
        if needs[2] and not ctx.is_whole:
            if torch.is_grad_enabled():
                padding = 0, 0, rows.start, ctx.shape[0] - rows.stop
                of_x = F.pad((last @ weight).to(ctx.dtype), padding)
            else:
                of_x = grad.new_empty(ctx.shape, dtype=ctx.dtype)
                of_x[: rows.start].zero_()
                of_x[rows.stop :].zero_()
                add_product(of_x[rows], last, weight, True)
        if needs[3]:
            chosen = x[rows].to(last.dtype)
            again = torch.is_grad_enabled()
            of_weight = last.t() @ chosen if again else product_of_columns(last, chosen)
        return (
            None if ctx.is_whole else grad[: ctx.count],
            grad if ctx.is_whole else None,
            of_x,
            of_weight,
            last.sum(0) if needs[4] else None,
            None,
        )
