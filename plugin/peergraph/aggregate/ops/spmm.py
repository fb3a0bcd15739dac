"""g-SpMM: messages of edges, reduced at their destinations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import MESSAGES
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.spmm import spmm
from peergraph.aggregate.kernels.spmm_minmax import extremum, extremum_grad
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import (
    apart,
    autocast,
    check_operand,
    check_same_dtype,
    columns,
    flat,
    is_prefix,
    use_deterministic,
)
from peergraph.aggregate.ops.sddmm import g_sddmm
from peergraph.aggregate.ops.spmm_table_rows import reduce_table
from peergraph.aggregate.ops.spmm_transposed import by_degrees, spmm_transposed, sums_of_means
from peergraph.aggregate.sparse.checks import check_backward
from peergraph.aggregate.sparse.csc import Backward, Csc
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.memory import TableRows

REDUCTIONS = ("sum", "mean", "max", "min")


def g_spmm(
    csc: Csc,
    message: str,
    reduce: str,
    x: Tensor | TableRows | None = None,
    e: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Reduces the messages of each destination's edges (WholeGraph III-C4, g-SpMM).

    Messages are never written to memory. Destinations without edges get zeros. Sums are kept in
    float32, in float64 for float64. The forward always reduces in a fixed order. Of several edges
    with the extremum, the first has the gradient. Differentiable once in `x` and `e`.

    Under ``torch.amp`` operands other than float64 are cast to autocast's dtype, as by a matrix
    product.

    Args:
        csc: the structure; its device is that of all.
        message: ``copy_u`` (x of the source), ``copy_e`` (e of the edge), ``add``, ``sub``,
            ``mul``, ``div`` (x before e), ``dot`` (sum of x * e over the last dimension).
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        x: [sources, *features] float32, float64, float16 or bfloat16; or rows of a table, which
            are read where they lie: the matrix of all sources is never written.
        e: [edges, *features] of the same dtype, in the order of the structure's edge ids. Trailing
            dimensions may be left out or be 1: a scalar [edges] for all features, [edges, heads]
            for x of [sources, heads, width]. Where x lacks what e has, x is expanded.
        backward: how gradients reach `x`: ``transpose`` sums over the transpose of the structure,
            which is made once and kept; ``atomic`` needs none; ``auto`` takes atomics for the
            structure of one mini-batch on a GPU, unless its transpose has been made.
        deterministic: gradients too are summed in a fixed order; default: as
            ``torch.use_deterministic_algorithms`` says.

    Returns:
        [destinations, *features]; ``dot`` drops the last dimension.

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: an unknown name, an operand missing or not used, shapes or devices that do not
            go together.
        TypeError: dtypes that are not supported or differ.
    """
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
        direct = reduce_table(csc, message, reduce, x, e)
        if direct is not None:
            return direct
        x = x.gather()
    if x is not None:
        check_operand("x", x, csc, csc.num_sources, "sources")
    if e is not None:
        check_operand("e", e, csc, csc.num_edges, "edges")
    x, e = autocast(x), autocast(e)
    check_same_dtype(x=x, e=e)
    if message == "dot":
        assert x is not None
        e = g_sddmm(csc, "dot", x, e, "u", "e", backward=backward, deterministic=deterministic)
        message, x = "copy_e", None
    x, e, features = _align(x, e)
    if columns(features) == 0:
        # No values, but a place in the graph of gradients, which are zeros.
        nothing = torch.stack([t.sum() for t in (x, e) if t is not None]).sum()
        return nothing.expand(csc.num_destinations, *features)
    by_atomics_anyway = reduce in ("max", "min") and not fixed_order and backward != "transpose"
    transpose = None
    if x is not None and x.requires_grad and torch.is_grad_enabled() and not by_atomics_anyway:
        transpose = csc.gradient_matrix(backward, fixed_order)
    if reduce in ("max", "min"):
        found = _Extremum.apply(x, e, csc, message, reduce == "min", transpose is not None)  # type: ignore[no-untyped-call]
    else:
        found = _Sum.apply(x, e, csc, message, reduce == "mean", transpose)  # type: ignore[no-untyped-call]
    result: Tensor = found
    return result.reshape(csc.num_destinations, *features)


def _align(
    x: Tensor | None, e: Tensor | None
) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """Operands as matrices, the columns of `e` as many as those of `x` or a divisor; features."""
    if x is None or e is None:
        only = e if x is None else x
        assert only is not None
        return (
            None if x is None else flat(x),
            None if e is None else flat(e),
            tuple(only.shape[1:]),
        )
    given, edge = tuple(x.shape[1:]), tuple(e.shape[1:])
    features = given
    if given == edge:
        return flat(x), flat(apart(e, x)), features
    if len(given) == len(edge):
        try:
            features = tuple(torch.broadcast_shapes(given, edge))  # type: ignore[no-untyped-call]
        except RuntimeError:
            features = given
    if not is_prefix(edge, features):
        raise ValueError(
            f"e must have the shape of x's rows, {list(given)}, or the first dimensions of it, "
            f"got {list(edge)}"
        )
    return flat(x.expand(-1, *features)), flat(e), features


class _Sum(torch.autograd.Function):
    """Sum or mean of messages."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        csc: Csc,
        message: str,
        mean: bool,
        transpose: CsrMatrix | None,
    ) -> Tensor:
        keep_x = message in ("mul", "div") and ctx.needs_input_grad[1]
        keep_e = message in ("mul", "div")
        ctx.save_for_backward(x if keep_x else None, e if keep_e else None)
        ctx.csc, ctx.message, ctx.mean, ctx.transpose = csc, message, mean, transpose
        ctx.e_columns = 1 if e is None else e.shape[1]
        return spmm(x, e, *csc.rows.tensors, message, mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e = ctx.saved_tensors
        csc, message = ctx.csc, ctx.message
        backwards = message if message in ("mul", "div") else "copy_u"
        weight = e if backwards != "copy_u" else None
        if ctx.mean and weight is None and not ctx.needs_input_grad[1]:
            grad, weight = sums_of_means(csc, grad)
            backwards = "copy_u" if weight is None else "mul"
        elif ctx.mean:
            grad = by_degrees(csc, grad)
        grad_x = grad_e = None
        if ctx.needs_input_grad[0]:
            grad_x = spmm_transposed(csc, ctx.transpose, grad, weight, backwards)
        if ctx.needs_input_grad[1]:
            grad_e = _grad_of_edges(csc, message, grad, x, e, ctx.e_columns)
        return grad_x, grad_e, None, None, None, None


def _grad_of_edges(
    csc: Csc, message: str, grad: Tensor, x: Tensor | None, e: Tensor | None, heads: int
) -> Tensor:
    depth = grad.shape[1] // heads
    if message in ("mul", "div"):
        assert e is not None
        product = sddmm(x, grad, *csc.rows.tensors, "mul", "uv", heads, depth)
        return product if message == "mul" else -(product / e) / e
    by_head = grad.reshape(grad.shape[0], heads, depth).sum(-1) if depth != 1 else grad
    by_head = -by_head if message == "sub" else by_head
    return sddmm(by_head, None, *csc.rows.tensors, "copy_u", "vv", heads, 1)


class _Extremum(torch.autograd.Function):
    """Largest or smallest message."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        csc: Csc,
        message: str,
        minimum: bool,
        fixed_order: bool,
    ) -> Tensor:
        out, arg = extremum(x, e, *csc.rows.tensors, message, minimum)
        uses_values = message in ("mul", "div")
        ctx.save_for_backward(arg, x if uses_values else None, e if uses_values else None)
        ctx.csc, ctx.message, ctx.fixed_order = csc, message, fixed_order
        ctx.e_columns = 1 if e is None else e.shape[1]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arg, x, e = ctx.saved_tensors
        wanted = [bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1])]
        rows = ctx.csc.rows
        transposed = list(ctx.csc.transpose_tensors()) if ctx.fixed_order else []
        grad_x, grad_e = extremum_grad(
            grad,
            arg,
            x,
            e,
            ctx.e_columns,
            wanted,
            rows.indptr,
            rows.indices,
            rows.edge_ids,
            rows.num_columns,
            transposed,
            ctx.message,
        )
        return (
            grad_x if wanted[0] else None,
            grad_e if wanted[1] else None,
            None,
            None,
            None,
            None,
        )
