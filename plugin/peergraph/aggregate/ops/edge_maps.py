"""Sums at destinations, sums at sources and products at edges, which are each other's gradients.

Operands are matrices, and nothing is checked. All three can be differentiated any number of times.
Where no gradient is wanted of the result, kernels run without autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.source_gradients import (
    divide_by_degrees,
    gradient_of_sums,
    sum_to_sources,
)
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.autograd import Function


def destination_sums(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    x: Tensor | None,
    e: Tensor | None,
    message: str,
    mean: bool = False,
) -> Tensor:
    """Returns the sum or mean of the messages of each destination, [destinations, columns].

    Args:
        matrix: the edges.
        transpose: the transpose of `matrix`, over which gradients of sources are summed; None for
            atomics.
        x: [sources, columns], or None.
        e: [edges, columns or a divisor], or None.
        message: as in :func:`peergraph.aggregate.g_spmm`, without ``dot``.
        mean: divide by the number of edges.
    """
    if not _records_gradients():
        return matrix.sum_messages(x, e, message, mean)
    result: Tensor = DestinationSums.apply(x, e, matrix, message, mean, transpose)
    return result


def source_sums(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    x: Tensor | None,
    e: Tensor | None,
    message: str,
) -> Tensor:
    """Returns the sum of the messages of each source's edges, [sources, columns].

    Args:
        matrix, transpose, e: as for :func:`destination_sums`.
        x: [destinations, columns], or None.
        message: ``copy_u``, ``copy_e``, ``mul`` or ``div``.
    """
    if not _records_gradients():
        return sum_to_sources(matrix, transpose, x, e, message)
    if message == "div":
        assert e is not None
        message, e = "mul", e.reciprocal()
    result: Tensor = SourceSums.apply(x, e, matrix, transpose, message)
    return result


def edge_products(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    left: Tensor,
    right: Tensor | None,
    message: str,
    targets: str,
    shape: tuple[int, int],
) -> Tensor:
    """Returns the message of `left` and `right` of each edge, [edges, heads].

    Args:
        matrix, transpose: as for :func:`destination_sums`.
        left, right: [rows, heads * depth, or a divisor].
        message: as in :func:`peergraph.aggregate.g_sddmm`.
        targets: two letters: where the rows of `left` and of `right` are looked up.
        shape: heads, and the depth that is summed over.
    """
    if not _records_gradients():
        return sddmm(left, right, matrix.tensors, message, targets, *shape)
    result: Tensor = EdgeProducts.apply(left, right, matrix, message, targets, shape, transpose)
    return result


def _records_gradients() -> bool:
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


class DestinationSums(Function):
    """Sum or mean of messages."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: EdgeMatrix,
        message: str,
        mean: bool,
        transpose: EdgeMatrix | None,
    ) -> Tensor:
        keep_x = message in ("mul", "div") and ctx.needs_input_grad[1]
        keep_e = message in ("mul", "div")
        ctx.save_for_backward(x if keep_x else None, e if keep_e else None)
        ctx.matrix, ctx.message, ctx.mean, ctx.transpose = matrix, message, mean, transpose
        ctx.e_columns = 1 if e is None else e.shape[1]
        return matrix.sum_messages(x, e, message, mean)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e = ctx.saved_tensors
        matrix, message, transpose = ctx.matrix, ctx.message, ctx.transpose
        backwards = message if message in ("mul", "div") else "copy_u"
        weight = e if backwards != "copy_u" else None
        if ctx.mean and weight is None and not ctx.needs_input_grad[1]:
            grad, weight = gradient_of_sums(matrix, grad)
            backwards = "copy_u" if weight is None else "mul"
        elif ctx.mean:
            grad = divide_by_degrees(matrix, grad)
        grad_x = grad_e = None
        if ctx.needs_input_grad[0]:
            grad_x = source_sums(matrix, transpose, grad, weight, backwards)
        if ctx.needs_input_grad[1]:
            grad_e = _grad_of_edges(matrix, transpose, message, grad, x, e, ctx.e_columns)
        return grad_x, grad_e, None, None, None, None


def _grad_of_edges(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    message: str,
    grad: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    heads: int,
) -> Tensor:
    depth = grad.shape[1] // heads
    if message in ("mul", "div"):
        assert x is not None and e is not None
        product = edge_products(matrix, transpose, x, grad, "mul", "uv", (heads, depth))
        return product if message == "mul" else -(product / e) / e
    by_head = grad.reshape(grad.shape[0], heads, depth).sum(-1) if depth != 1 else grad
    by_head = -by_head if message == "sub" else by_head
    return edge_products(matrix, transpose, by_head, None, "copy_u", "vv", (heads, 1))


class SourceSums(Function):
    """Sum at sources of messages of destinations."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        e: Tensor | None,
        matrix: EdgeMatrix,
        transpose: EdgeMatrix | None,
        message: str,
    ) -> Tensor:
        weighted = message == "mul"
        ctx.save_for_backward(
            x if weighted and ctx.needs_input_grad[1] else None, e if weighted else None
        )
        ctx.matrix, ctx.transpose, ctx.message = matrix, transpose, message
        ctx.e_columns = 1 if e is None else e.shape[1]
        return sum_to_sources(matrix, transpose, x, e, message)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e = ctx.saved_tensors
        matrix, transpose, heads = ctx.matrix, ctx.transpose, ctx.e_columns
        grad_x = grad_e = None
        if ctx.needs_input_grad[0]:
            grad_x = destination_sums(matrix, transpose, grad, e, ctx.message)
        if ctx.needs_input_grad[1] and ctx.message == "mul":
            shape = (heads, grad.shape[1] // max(1, heads))
            grad_e = edge_products(matrix, transpose, grad, x, "mul", "uv", shape)
        elif ctx.needs_input_grad[1]:
            shape = (grad.shape[1], 1)
            grad_e = edge_products(matrix, transpose, grad, None, "copy_u", "uu", shape)
        return grad_x, grad_e, None, None, None


class EdgeProducts(Function):
    """A value for each edge from its ends and itself."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor | None,
        matrix: EdgeMatrix,
        message: str,
        targets: str,
        shape: tuple[int, int],
        transpose: EdgeMatrix | None,
    ) -> Tensor:
        uses_values = message in ("mul", "div")
        needs = ctx.needs_input_grad
        keep_left = uses_values and needs[1]
        keep_right = uses_values and (needs[0] or message == "div")
        ctx.save_for_backward(left if keep_left else None, right if keep_right else None)
        ctx.matrix, ctx.message, ctx.targets = matrix, message, targets
        ctx.heads, ctx.transpose = shape[0], transpose
        return sddmm(left, right, matrix.tensors, message, targets, *shape)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        message, (lhs, rhs) = ctx.message, ctx.targets
        gradient = _GradientOfProducts(ctx.matrix, ctx.transpose, grad)
        grad_left = grad_right = None
        if ctx.needs_input_grad[0]:
            factor = right.reciprocal() if message == "div" else right
            grad_left = gradient.of(lhs, factor, rhs)
        if ctx.needs_input_grad[1]:
            grad_right = gradient.of(rhs, left, lhs)
            if message == "sub":
                grad_right = -grad_right
            if message == "div":
                # d(l / r) = -l / r^2, whose square may be out of range.
                grad_right = -(grad_right / right) / right
        return grad_left, grad_right, None, None, None, None, None


class _GradientOfProducts:
    """Takes the gradient of edge values to one of their operands.

    Args:
        matrix: the structure.
        transpose: what sums for sources run over, None for atomics.
        grad: [edges, heads].
    """

    def __init__(self, matrix: EdgeMatrix, transpose: EdgeMatrix | None, grad: Tensor) -> None:
        self._matrix, self._transpose, self._grad = matrix, transpose, grad

    def of(self, target: str, factor: Tensor | None, factor_target: str) -> Tensor:
        """Returns the gradient times `factor`, summed over the edges of each row of `target`."""
        grad = self._grad
        if factor is None:
            return grad if target == "e" else self._sum(target, None, grad, "copy_e")
        if target == "e":
            return self._times(factor, factor_target)
        if factor_target == target:
            return self._by_head(self._sum(target, None, grad, "copy_e"), factor)
        if factor_target == "e":
            return self._sum(target, None, self._by_head(grad, factor), "copy_e")
        return self._sum(target, factor, grad, "mul")

    def _sum(self, target: str, x: Tensor | None, e: Tensor, message: str) -> Tensor:
        sums = source_sums if target == "u" else destination_sums
        return sums(self._matrix, self._transpose, x, e, message)

    def _times(self, factor: Tensor, factor_target: str) -> Tensor:
        """Returns the gradient of each edge times its row of `factor`."""
        if factor_target == "e":
            return self._by_head(self._grad, factor)
        grad, columns = self._grad, factor.shape[1]
        if _records_gradients() and grad.shape[1] not in (0, columns):
            # The gradient of a product is for operands with a value for each of its columns.
            grad = grad.repeat_interleave(columns // grad.shape[1], dim=1)
        targets, shape = "e" + factor_target, (columns, 1)
        return edge_products(self._matrix, self._transpose, grad, factor, "mul", targets, shape)

    def _by_head(self, narrow: Tensor, wide: Tensor) -> Tensor:
        """Returns `wide`, each head of it times a value of `narrow`."""
        rows, heads = narrow.shape
        depth = wide.shape[1] // max(1, heads)
        return (narrow.unsqueeze(-1) * wide.view(rows, heads, depth)).flatten(1)
