"""Sums of messages at the sources of edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import (
    align,
    autocast,
    check_operand,
    check_same_dtype,
    use_deterministic,
)
from peergraph.aggregate.ops.source_gradients import sum_to_sources
from peergraph.aggregate.sparse.csr import Backward, CsrMatrix

MESSAGES = ("copy_u", "copy_e", "mul")


def spmm_transposed(
    matrix: CsrMatrix,
    message: str,
    x: Tensor | None,
    e: Tensor | None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Returns the sum of messages at each source: see ``Csc.spmm_transposed``."""
    if message not in MESSAGES:
        raise ValueError(f"message must be one of {', '.join(MESSAGES)}, got {message!r}")
    for name, operand, needed in (("x", x, message != "copy_e"), ("e", e, message != "copy_u")):
        if (operand is not None) != needed:
            state = "needs" if needed else "does not use"
            raise ValueError(f"message {message!r} {state} {name}")
    if x is not None:
        check_operand("x", x, matrix.device, matrix.num_rows, "destinations")
    if e is not None:
        check_operand("e", e, matrix.device, matrix.num_edges, "edges")
    x, e = autocast(x), autocast(e)
    check_same_dtype(x=x, e=e)
    x, e, features = align(x, e)
    transpose = matrix.gradient_matrix(backward, use_deterministic(deterministic))
    result: Tensor = _SpmmTransposed.apply(x, e, matrix, transpose, message)  # type: ignore[no-untyped-call]
    return result.reshape(matrix.num_columns, *features)


class _SpmmTransposed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: CsrMatrix,
        transpose: CsrMatrix | None,
        message: str,
    ) -> Tensor:
        weighted = message == "mul"
        ctx.save_for_backward(
            x if weighted and ctx.needs_input_grad[1] else None, e if weighted else None
        )
        ctx.matrix, ctx.message = matrix, message
        ctx.e_columns = 1 if e is None else e.shape[1]
        return sum_to_sources(matrix, transpose, x, e, message)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e = ctx.saved_tensors
        matrix: CsrMatrix = ctx.matrix
        grad_x = grad_e = None
        if ctx.needs_input_grad[0]:
            grad_x = matrix.spmm(grad, e, ctx.message)
        if ctx.needs_input_grad[1] and ctx.message == "mul":
            heads = ctx.e_columns
            grad_e = matrix.sddmm(grad, x, "mul", "uv", heads, grad.shape[1] // max(1, heads))
        elif ctx.needs_input_grad[1]:
            grad_e = matrix.sddmm(grad, None, "copy_u", "uu", grad.shape[1], 1)
        return grad_x, grad_e, None, None, None
