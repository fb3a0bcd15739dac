"""g-SpMM: messages of edges, reduced at their destinations."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import MESSAGES, CsrTensors
from peergraph.aggregate.kernels.spmm_minmax import spmm_minmax, spmm_minmax_backward
from peergraph.aggregate.ops.edge_maps import DestinationSums
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.operands import (
    align,
    autocast,
    check_message,
    check_operand,
    check_same_dtype,
    columns,
    use_deterministic,
)
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.spmm_table_rows import reduce_table
from peergraph.aggregate.sparse.edge_matrix import Backward, EdgeMatrix, check_backward
from peergraph.autograd import Function
from peergraph.memory import TableRows

REDUCTIONS = ("sum", "mean", "max", "min")


class Sum(NamedTuple):
    """What :func:`peergraph.aggregate.g_spmm` computes, without the structure.

    Structures pass it on whole: an argument that is added here reaches :func:`spmm` through all of
    them, and those that have ways of their own for some sums take none of them for it.
    """

    message: str
    reduce: str
    x: Tensor | TableRows | None = None
    e: Tensor | None = None
    backward: Backward = "auto"
    deterministic: bool | None = None

    def settings(self) -> dict[str, Any]:
        """Returns all arguments but the operands, by name."""
        return {**self._asdict(), "x": None, "e": None}

    def is_basic(self) -> bool:
        """Returns whether only the first six arguments are set, which all structures know."""
        return self[6:] == _BASIC[6:]

    def of_rows(self, x: Tensor | TableRows | None, e: Tensor | None, backward: Backward) -> Sum:
        """Returns the same sum of other operands. Takes a third of the time of ``_replace``."""
        return Sum(self.message, self.reduce, x, e, backward, *self[5:])


_BASIC = Sum("", "")


def spmm(matrix: EdgeMatrix, of: Sum) -> Tensor:
    """Reduces messages at the rows of `matrix`: see :func:`peergraph.aggregate.g_spmm`."""
    message, reduce, x, e, backward, deterministic = of
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    check_message(message, (*MESSAGES, "dot"), x, e)
    fixed_order = use_deterministic(deterministic)
    check_backward(backward, fixed_order)
    if isinstance(x, TableRows):
        direct = reduce_table(matrix, message, reduce, x, e)
        if direct is not None:
            return direct
        x = x.gather()
    if x is not None:
        check_operand("x", x, matrix.device, matrix.num_sources, "sources")
    if e is not None:
        check_operand("e", e, matrix.device, matrix.num_edges, "edges")
    x, e = autocast(x), autocast(e)
    check_same_dtype(x=x, e=e)
    if message == "dot":
        assert x is not None
        assert e is not None
        e = e.reshape(*e.shape, *[1] * (x.dim() - e.dim()))  # as :func:`align`
        e = sddmm(matrix, "dot", x, e, "u", "e", backward=backward, deterministic=deterministic)
        message, x = "copy_e", None
    x, e, features = align(x, e)
    if columns(features) == 0:
        # The result has no values, but must be part of the graph of gradients.
        nothing = torch.stack([t.sum() for t in (x, e) if t is not None]).sum()
        return nothing.expand(matrix.num_destinations, *features)
    by_atomics_anyway = reduce in ("max", "min") and not fixed_order and backward != "transpose"
    transpose = None
    if x is not None and x.requires_grad and torch.is_grad_enabled() and not by_atomics_anyway:
        transpose = matrix.gradient_matrix(backward, fixed_order, x.shape[1])
    if reduce in ("max", "min"):
        reduced = _MinMax.apply(x, e, matrix, message, reduce == "min", transpose is not None)
    else:
        reduced = DestinationSums.apply(x, e, matrix, message, reduce == "mean", transpose)
    result: Tensor = reduced
    return result.reshape(matrix.num_destinations, *features)


def minmax_gradients(
    matrix: EdgeMatrix,
    grad: Tensor,
    arg: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    e_columns: int,
    needs: list[bool],
    message: str,
    fixed_order: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `x` and `e` of extrema, empty where they are not needed."""
    transpose = None
    if fixed_order:
        transpose = CsrTensors(*matrix.transpose_tensors(), matrix.num_destinations, 0)
    needs_x, needs_e = needs
    return spmm_minmax_backward(
        grad, arg, x, e, e_columns, needs_x, needs_e, matrix.tensors, transpose, message
    )


class _MinMax(Function):
    """Maximum or minimum of the messages of each destination, with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: EdgeMatrix,
        message: str,
        minimum: bool,
        fixed_order: bool,
    ) -> Tensor:
        out, arg = spmm_minmax(x, e, matrix.tensors, message, minimum)
        uses_values = message in ("mul", "div")
        ctx.save_for_backward(arg, x if uses_values else None, e if uses_values else None)
        ctx.matrix, ctx.message, ctx.fixed_order = matrix, message, fixed_order
        ctx.e_columns = 1 if e is None else e.shape[1]
        return out

    @staticmethod
    @once_differentiable("max and min over edges")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arg, x, e = ctx.saved_tensors
        needs = [bool(ctx.needs_input_grad[0]), bool(ctx.needs_input_grad[1])]
        grad_x, grad_e = minmax_gradients(
            ctx.matrix, grad, arg, x, e, ctx.e_columns, needs, ctx.message, ctx.fixed_order
        )
        return (
            grad_x if needs[0] else None,
            grad_e if needs[1] else None,
            None,
            None,
            None,
            None,
        )
