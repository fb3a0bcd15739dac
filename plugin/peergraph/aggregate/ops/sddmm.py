"""g-SDDMM: a value for each edge from features of its source, its destination or the edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import TARGETS
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import (
    autocast,
    check_operand,
    check_same_dtype,
    columns,
    flat,
    use_deterministic,
    view_if_aliased,
)
from peergraph.aggregate.ops.source_gradients import sum_to_sources
from peergraph.aggregate.sparse.csr import Backward, CsrMatrix, check_backward

OPERATIONS = ("copy", "add", "sub", "mul", "div", "dot")
_MESSAGES = {"copy": "copy_u", "dot": "mul"}


def sddmm(
    matrix: CsrMatrix,
    op: str,
    lhs: Tensor,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""
    if op not in OPERATIONS:
        raise ValueError(f"op must be one of {', '.join(OPERATIONS)}, got {op!r}")
    if (rhs is None) != (op == "copy"):
        raise ValueError(f"op {op!r} {'does not use' if op == 'copy' else 'needs'} rhs")
    fixed_order = use_deterministic(deterministic)
    check_backward(backward, fixed_order)
    _check("lhs", lhs, lhs_target, matrix)
    if rhs is not None:
        _check("rhs", rhs, rhs_target, matrix)
    left, right = autocast(lhs), autocast(rhs)
    assert left is not None
    check_same_dtype(lhs=left, rhs=right)
    features = tuple(left.shape[1:])
    if right is not None and right.shape[1:] != features:
        try:
            features = tuple(torch.broadcast_shapes(features, right.shape[1:]))  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise ValueError(
                f"lhs and rhs must have rows that broadcast, got {list(features)} and "
                f"{list(right.shape[1:])}"
            ) from None
        left, right = _expand(left, features), _expand(right, features)
    if op == "dot":
        if not features:
            raise ValueError("op 'dot' needs features to sum over, got one number for each row")
        features, depth = features[:-1], features[-1]
    else:
        depth = 1
    transpose = None
    grads = torch.is_grad_enabled()
    for operand, target in ((left, lhs_target), (right, rhs_target)):
        if operand is not None and target == "u" and operand.requires_grad and grads:
            transpose = matrix.gradient_matrix(backward, fixed_order)
    message = _MESSAGES.get(op, op)
    shape = (columns(features), depth)
    result: Tensor = _Sddmm.apply(  # type: ignore[no-untyped-call]
        flat(left),
        None if right is None else flat(view_if_aliased(right, left)),
        matrix,
        message,
        lhs_target + rhs_target,
        shape,
        transpose,
    )
    return result.reshape(matrix.num_edges, *features)


def _check(name: str, operand: Tensor, target: str, matrix: CsrMatrix) -> None:
    if target not in TARGETS:
        raise ValueError(f"{name}_target must be 'u', 'v' or 'e', got {target!r}")
    rows, what = {
        "u": (matrix.num_columns, "sources"),
        "v": (matrix.num_rows, "destinations"),
        "e": (matrix.num_edges, "edges"),
    }[target]
    check_operand(name, operand, matrix.device, rows, what)


def _expand(operand: Tensor, features: tuple[int, ...]) -> Tensor:
    """Returns the operand broadcast to all features, with missing leading dimensions."""
    if operand.shape[1:] == features:
        return operand
    missing = len(features) - (operand.dim() - 1)
    shape = (operand.shape[0], *[1] * missing, *operand.shape[1:])
    return operand.reshape(shape).expand(-1, *features)


class _Sddmm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor | None,
        matrix: CsrMatrix,
        message: str,
        targets: str,
        shape: tuple[int, int],
        transpose: CsrMatrix | None,
    ) -> Tensor:
        uses_values = message in ("mul", "div")
        needs = ctx.needs_input_grad
        keep_left = uses_values and needs[1]
        keep_right = uses_values and (needs[0] or message == "div")
        ctx.save_for_backward(left if keep_left else None, right if keep_right else None)
        ctx.matrix, ctx.message, ctx.targets = matrix, message, targets
        ctx.heads, ctx.transpose = shape[0], transpose
        return matrix.sddmm(left, right, message, targets, *shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        message, (lhs, rhs) = ctx.message, ctx.targets
        gradient = _Gradient(ctx.matrix, ctx.transpose, grad)
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


class _Gradient:
    """Takes the gradient of edge values to one of their operands.

    Args:
        matrix: the structure.
        transpose: what sums for sources run over, None for atomics.
        grad: [edges, heads].
    """

    def __init__(self, matrix: CsrMatrix, transpose: CsrMatrix | None, grad: Tensor) -> None:
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
        if target == "u":
            return sum_to_sources(self._matrix, self._transpose, x, e, message)
        return self._matrix.spmm(x, e, message)

    def _times(self, factor: Tensor, factor_target: str) -> Tensor:
        """Returns the gradient of each edge times its row of `factor`."""
        if factor_target == "e":
            return self._by_head(self._grad, factor)
        targets, columns = "e" + factor_target, factor.shape[1]
        return self._matrix.sddmm(self._grad, factor, "mul", targets, columns, 1)

    def _by_head(self, narrow: Tensor, wide: Tensor) -> Tensor:
        """Returns `wide`, each head of it times a value of `narrow`."""
        rows, heads = narrow.shape
        depth = wide.shape[1] // max(1, heads)
        return (narrow.unsqueeze(-1) * wide.view(rows, heads, depth)).flatten(1)
