"""Sums, means and extrema of messages as operators of torch, with gradients.

Operators take :class:`TracedEdges` in place of a structure. Inside, they run the same code as
without a compiler: the functions of :mod:`peergraph.aggregate.ops`, with a :class:`Context` in
place of autograd's. Operands are matrices, and nothing is checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import first_operand
from peergraph.aggregate.kernels.spmm_minmax import dtype_of_positions, spmm_minmax
from peergraph.aggregate.kernels.torch_operator import add_gradient, kernel
from peergraph.aggregate.ops.edge_maps import DestinationSums
from peergraph.aggregate.ops.operands import use_deterministic
from peergraph.aggregate.ops.spmm import minmax_gradients
from peergraph.aggregate.ops.spmm_add_self import SpmmAddSelf
from peergraph.aggregate.traced.context import Context, gradient_matrix, or_empty
from peergraph.aggregate.traced.edges import TracedEdges

# Sums and means of messages.


def _empty_sums(x: Tensor | None, e: Tensor | None, edges: TracedEdges) -> Tensor:
    operand = first_operand(x, e)
    return operand.new_empty(edges.num_destinations, operand.shape[1])


@kernel(_empty_sums)
def traced_spmm(
    x: Tensor | None, e: Tensor | None, edges: TracedEdges, message: str, mean: bool
) -> Tensor:
    """Returns the sum or mean of the messages of each destination, [destinations, columns]."""
    return edges.structure(counted=True).sum_messages(x, e, message, mean)


def _empty_spmm_gradients(
    grad: Tensor, edges: TracedEdges, wants_x: bool, wants_e: bool, e_columns: int
) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty(edges.num_sources, grad.shape[1]) if wants_x else grad.new_empty(0),
        grad.new_empty(edges.num_edges, e_columns) if wants_e else grad.new_empty(0),
    )


@kernel(_empty_spmm_gradients)
def traced_spmm_gradients(
    grad: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    edges: TracedEdges,
    message: str,
    mean: bool,
    wants_x: bool,
    wants_e: bool,
    e_columns: int,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the operands of :func:`traced_spmm`."""
    matrix = edges.structure()
    context = Context(
        [wants_x, wants_e],
        (x, e),
        matrix=matrix,
        message=message,
        mean=mean,
        transpose=gradient_matrix(matrix, wants_x),
        e_columns=e_columns,
    )
    with torch.no_grad():
        grad_x, grad_e, *_ = DestinationSums.backward(context, grad.contiguous())
    return or_empty(grad_x, grad), or_empty(grad_e, grad)


def _spmm_gradients(
    needs: tuple[Any, ...], inputs: list[Any], output: Tensor, grad: Tensor
) -> list[Any]:
    x, e, edges, message, mean = inputs
    valued, columns = message in ("mul", "div"), 0 if e is None else e.shape[1]
    wants_x, wants_e = needs[0], needs[1]
    grad_x, grad_e = traced_spmm_gradients(
        grad,
        x if valued and wants_e else None,
        e if valued else None,
        edges,
        message,
        mean,
        wants_x,
        wants_e,
        columns,
    )
    return [grad_x if wants_x else None, grad_e if wants_e else None, None, None, None]


add_gradient(traced_spmm, _spmm_gradients)


# Largest and smallest messages.


def _empty_extremes(
    x: Tensor | None, e: Tensor | None, edges: TracedEdges
) -> tuple[Tensor, Tensor]:
    operand = first_operand(x, e)
    out = operand.new_empty(edges.num_destinations, operand.shape[1])
    dtype = dtype_of_positions(edges.edge_index, edges.num_edges)
    return out, torch.empty_like(out, dtype=dtype)


@kernel(_empty_extremes)
def traced_spmm_minmax(
    x: Tensor | None, e: Tensor | None, edges: TracedEdges, message: str, minimum: bool
) -> tuple[Tensor, Tensor]:
    """Returns the largest or smallest message of each row, and its first position or -1."""
    return spmm_minmax(x, e, edges.structure(counted=True).tensors, message, minimum)


def _empty_minmax_gradients(
    grad: Tensor, e_columns: int, wants_x: bool, wants_e: bool, edges: TracedEdges
) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty(edges.num_sources if wants_x else 0, grad.shape[1]),
        grad.new_empty(edges.num_edges if wants_e else 0, e_columns),
    )


@kernel(_empty_minmax_gradients)
def traced_spmm_minmax_gradients(
    grad: Tensor,
    arg: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    e_columns: int,
    wants_x: bool,
    wants_e: bool,
    edges: TracedEdges,
    message: str,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the operands of :func:`traced_spmm_minmax`."""
    matrix, needs = edges.structure(), [wants_x, wants_e]
    fixed = use_deterministic(None)
    return minmax_gradients(matrix, grad, arg, x, e, e_columns, needs, message, fixed)


def _minmax_gradients(
    needs: tuple[Any, ...],
    inputs: list[Any],
    output: tuple[Tensor, Tensor],
    grad: Tensor,
    grad_arg: Tensor | None,
) -> list[Any]:
    x, e, edges, message, _ = inputs
    valued, columns = message in ("mul", "div"), 1 if e is None else e.shape[1]
    wants_x, wants_e = needs[0], needs[1]
    grad_x, grad_e = traced_spmm_minmax_gradients(
        grad,
        output[1],
        x if valued else None,
        e if valued else None,
        columns,
        wants_x,
        wants_e,
        edges,
        message,
    )
    return [grad_x if wants_x else None, grad_e if wants_e else None, None, None, None]


add_gradient(traced_spmm_minmax, _minmax_gradients)


# Sums of neighbours and of a destination's own row.


def _empty_with_self(x: Tensor, edges: TracedEdges) -> Tensor:
    return x.new_empty(edges.num_destinations, x.shape[1])


@kernel(_empty_with_self)
def traced_spmm_add_self(
    x: Tensor, e: Tensor | None, self_weight: Tensor, bias: Tensor | None, edges: TracedEdges
) -> Tensor:
    """Returns the sums of ``copy_u`` or ``mul``, plus the first rows times `self_weight`."""
    matrix = edges.structure(counted=True).trim_isolated_tail()
    with torch.no_grad():
        return SpmmAddSelf.forward(
            Context([False] * 4), x, e, self_weight, bias, edges.num_destinations, matrix, None
        )


def _empty_gradients_with_self(
    grad: Tensor, self_weight: Tensor, edges: TracedEdges, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        grad.new_empty(edges.num_sources, grad.shape[1]) if needs[0] else grad.new_empty(0),
        grad.new_empty(edges.num_edges, 1) if needs[1] else grad.new_empty(0),
        grad.new_empty(self_weight.shape) if needs[2] else grad.new_empty(0),
        grad.new_empty(grad.shape[1]) if needs[3] else grad.new_empty(0),
    )


@kernel(_empty_gradients_with_self)
def traced_spmm_add_self_gradients(
    grad: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    self_weight: Tensor,
    edges: TracedEdges,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of the tensors of :func:`traced_spmm_add_self`."""
    matrix = edges.structure().trim_isolated_tail()
    context = Context(
        needs,
        (x, e, self_weight),
        matrix=matrix,
        transpose=gradient_matrix(matrix, needs[0]),
        count=edges.num_destinations,
    )
    with torch.no_grad():
        gradients = SpmmAddSelf.backward(context, grad)[:4]
    one, two, three, four = (or_empty(each, grad) for each in gradients)
    return one, two, three, four


def _gradients_with_self(
    needs: tuple[Any, ...], inputs: list[Any], output: Tensor, grad: Tensor
) -> list[Any]:
    x, e, self_weight, _, edges = inputs
    need_tensors = [bool(need) for need in needs[:4]]
    rows = x if need_tensors[1] or need_tensors[2] else None
    gradients = traced_spmm_add_self_gradients(grad, rows, e, self_weight, edges, need_tensors)
    return [*(g if need else None for g, need in zip(gradients, need_tensors, strict=True)), None]


add_gradient(traced_spmm_add_self, _gradients_with_self)
