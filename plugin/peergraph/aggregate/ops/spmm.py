"""g-SpMM: messages of edges, reduced at their destinations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import MESSAGES
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import (
    align,
    autocast,
    check_operand,
    check_same_dtype,
    columns,
    use_deterministic,
)
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.source_gradients import (
    divide_by_degrees,
    gradient_of_sums,
    sum_to_sources,
)
from peergraph.aggregate.ops.spmm_table_rows import reduce_table
from peergraph.aggregate.sparse.csr import Backward, CsrMatrix, check_backward
from peergraph.memory import TableRows

REDUCTIONS = ("sum", "mean", "max", "min")


def spmm(
    matrix: CsrMatrix,
    message: str,
    reduce: str,
    x: Tensor | TableRows | None = None,
    e: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Reduces messages at the rows of `matrix`: see :func:`peergraph.aggregate.g_spmm`."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    if message not in (*MESSAGES, "dot"):
        raise ValueError(f"message must be one of {', '.join(MESSAGES)}, dot, got {message!r}")
    for name, operand, needed in (("x", x, message != "copy_e"), ("e", e, message != "copy_u")):
        if (operand is not None) != needed:
            state = "needs" if needed else "does not use"
            raise ValueError(f"message {message!r} {state} {name}")
    fixed_order = use_deterministic(deterministic)
    check_backward(backward, fixed_order)
    if isinstance(x, TableRows):
        direct = reduce_table(matrix, message, reduce, x, e)
        if direct is not None:
            return direct
        x = x.gather()
    if x is not None:
        check_operand("x", x, matrix.device, matrix.num_columns, "sources")
    if e is not None:
        check_operand("e", e, matrix.device, matrix.num_edges, "edges")
    x, e = autocast(x), autocast(e)
    check_same_dtype(x=x, e=e)
    if message == "dot":
        assert x is not None
        e = sddmm(matrix, "dot", x, e, "u", "e", backward=backward, deterministic=deterministic)
        message, x = "copy_e", None
    x, e, features = align(x, e)
    if columns(features) == 0:
        # The result has no values, but must be part of the graph of gradients.
        nothing = torch.stack([t.sum() for t in (x, e) if t is not None]).sum()
        return nothing.expand(matrix.num_rows, *features)
    by_atomics_anyway = reduce in ("max", "min") and not fixed_order and backward != "transpose"
    transpose = None
    if x is not None and x.requires_grad and torch.is_grad_enabled() and not by_atomics_anyway:
        transpose = matrix.gradient_matrix(backward, fixed_order)
    if reduce in ("max", "min"):
        found = _MinMax.apply(x, e, matrix, message, reduce == "min", transpose is not None)  # type: ignore[no-untyped-call]
    else:
        found = _Sum.apply(x, e, matrix, message, reduce == "mean", transpose)  # type: ignore[no-untyped-call]
    result: Tensor = found
    return result.reshape(matrix.num_rows, *features)


class _Sum(torch.autograd.Function):
    """Sum or mean of messages."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: CsrMatrix,
        message: str,
        mean: bool,
        transpose: CsrMatrix | None,
    ) -> Tensor:
        keep_x = message in ("mul", "div") and ctx.needs_input_grad[1]
        keep_e = message in ("mul", "div")
        ctx.save_for_backward(x if keep_x else None, e if keep_e else None)
        ctx.matrix, ctx.message, ctx.mean, ctx.transpose = matrix, message, mean, transpose
        ctx.e_columns = 1 if e is None else e.shape[1]
        return matrix.spmm(x, e, message, mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e = ctx.saved_tensors
        matrix, message = ctx.matrix, ctx.message
        backwards = message if message in ("mul", "div") else "copy_u"
        weight = e if backwards != "copy_u" else None
        if ctx.mean and weight is None and not ctx.needs_input_grad[1]:
            grad, weight = gradient_of_sums(matrix, grad)
            backwards = "copy_u" if weight is None else "mul"
        elif ctx.mean:
            grad = divide_by_degrees(matrix, grad)
        grad_x = grad_e = None
        if ctx.needs_input_grad[0]:
            grad_x = sum_to_sources(matrix, ctx.transpose, grad, weight, backwards)
        if ctx.needs_input_grad[1]:
            grad_e = _grad_of_edges(matrix, message, grad, x, e, ctx.e_columns)
        return grad_x, grad_e, None, None, None, None


def _grad_of_edges(
    matrix: CsrMatrix, message: str, grad: Tensor, x: Tensor | None, e: Tensor | None, heads: int
) -> Tensor:
    depth = grad.shape[1] // heads
    if message in ("mul", "div"):
        assert e is not None
        product = matrix.sddmm(x, grad, "mul", "uv", heads, depth)
        return product if message == "mul" else -(product / e) / e
    by_head = grad.reshape(grad.shape[0], heads, depth).sum(-1) if depth != 1 else grad
    by_head = -by_head if message == "sub" else by_head
    return matrix.sddmm(by_head, None, "copy_u", "vv", heads, 1)


class _MinMax(torch.autograd.Function):
    """Maximum or minimum of the messages of each destination, with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: CsrMatrix,
        message: str,
        minimum: bool,
        fixed_order: bool,
    ) -> Tensor:
        out, arg = matrix.spmm_minmax(x, e, message, minimum)
        uses_values = message in ("mul", "div")
        ctx.save_for_backward(arg, x if uses_values else None, e if uses_values else None)
        ctx.matrix, ctx.message, ctx.fixed_order = matrix, message, fixed_order
        ctx.e_columns = 1 if e is None else e.shape[1]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arg, x, e = ctx.saved_tensors
        wanted = [bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1])]
        grad_x, grad_e = ctx.matrix.spmm_minmax_backward(
            grad, arg, x, e, ctx.e_columns, wanted, ctx.message, ctx.fixed_order
        )
        return (
            grad_x if wanted[0] else None,
            grad_e if wanted[1] else None,
            None,
            None,
            None,
            None,
        )
