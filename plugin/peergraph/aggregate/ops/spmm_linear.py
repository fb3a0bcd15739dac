"""Aggregation followed by linear maps, as in SAGE, GraphConv and RGCN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import DTYPES
from peergraph.aggregate.ops.edge_maps import source_sums
from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.operands import (
    as_tensor,
    check_operand,
    first_rows,
    product_dtype,
    runs_outside_of_traces,
    use_deterministic,
)
from peergraph.aggregate.ops.side_by_side import sum_table_as, sums_and_self_rows
from peergraph.aggregate.ops.source_gradients import (
    accumulates_in,
    add_sum_to_sources_,
    divide_by_degrees,
    gradient_of_sums,
    sum_to_sources,
)
from peergraph.aggregate.ops.spmm import REDUCTIONS, Sum, spmm
from peergraph.aggregate.sparse.edge_matrix import (
    Backward,
    EdgeMatrix,
    check_backward,
    check_first_rows,
)
from peergraph.autograd import Function
from peergraph.memory import TableRows

_NARROW = (torch.float16, torch.bfloat16)


class SumLinear(NamedTuple):
    """What :func:`peergraph.aggregate.spmm_linear` computes, without the first structure."""

    reduce: str
    x: Tensor | TableRows
    weights: Sequence[Tensor]
    self_weight: Tensor | None = None
    bias: Tensor | None = None
    self_x: Tensor | None = None
    others: Sequence[Any] = ()
    """Further structures of the same kind over the same nodes, one for each further weight."""
    backward: Backward = "auto"
    deterministic: bool | None = None

    def check(self) -> None:
        """Raises ValueError unless the reduction and the shapes of weights and bias are right."""
        if self.reduce not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {self.reduce!r}")
        if len(self.weights) != 1 + len(self.others):
            raise ValueError(
                f"each structure needs a weight, got {1 + len(self.others)} and {len(self.weights)}"
            )
        out = self.weights[0].shape[0] if self.weights[0].dim() == 2 else 0
        for i, weight in enumerate(self.weights):
            _check_shape(f"weights[{i}]", weight, (out, self.x.shape[1]))
        if self.self_weight is not None:
            rows = self.x if self.self_x is None else self.self_x
            _check_shape("self_weight", self.self_weight, (out, rows.shape[1]))
        if self.bias is not None:
            _check_shape("bias", self.bias, (out,))


def spmm_linear(matrix: EdgeMatrix, of: SumLinear) -> Tensor:
    """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`."""
    reduce, x, _, self_weight, bias, self_x, _, backward, deterministic = of
    matrices, weights = [matrix, *of.others], list(of.weights)
    _check(matrices, of)
    fixed_order = use_deterministic(deterministic)
    check_backward(backward, fixed_order)
    dtype, kind = product_dtype(x), x.device.type
    dtypes = {t.dtype for t in (x, *weights, self_weight, bias, self_x) if t is not None}
    casts, autocasts = dtypes != {dtype}, torch.is_autocast_enabled(kind)
    fits = reduce in ("sum", "mean") and dtype in DTYPES and runs_outside_of_traces(x)
    if autocasts:
        fits &= dtype in _NARROW and dtypes <= {*_NARROW, torch.float32}
    else:
        fits &= not casts
    if not fits or math.prod(x.shape) == 0:
        sums = (
            spmm(matrix, Sum("copy_u", reduce, x, None, backward, deterministic))
            for matrix in _trimmed(matrices, x, casts)
        )
        if self_x is None and self_weight is not None:
            self_x = as_tensor(x, matrices[0].num_destinations)
        return products(matrices[0].num_destinations, sums, weights, self_x, self_weight, bias)
    if autocasts:  # torch.autocast takes longer than a launch to be entered.
        torch.set_autocast_enabled(kind, False)
    try:
        return _multiplied(
            matrices,
            reduce == "mean",
            _as_source(x, dtype),
            dtype,
            weights,
            self_weight,
            None if bias is None else _as(dtype, bias),
            self_x,
            lambda matrix: matrix.gradient_matrix(backward, fixed_order, x.shape[1]),
        )
    finally:
        if autocasts:
            torch.set_autocast_enabled(kind, True)


def _trimmed(matrices: list[EdgeMatrix], x: Tensor | TableRows, casts: bool) -> list[EdgeMatrix]:
    """Returns the matrices without rows at the end that have no edges, where sums may be fewer."""
    plain = runs_outside_of_traces(x) and not torch.is_autocast_enabled(x.device.type)
    return [matrix.trim_isolated_tail() for matrix in matrices] if plain and not casts else matrices


def _as_source(x: Tensor | TableRows, dtype: torch.dtype) -> Tensor | TableRows:
    """Returns `x` of a dtype that sums can round to `dtype`; a table if it can be read."""
    if isinstance(x, TableRows):
        if x.can_be_read and x.dtype in (dtype, torch.float32):
            return x
        x = x.gather()
    return x if x.dtype in (dtype, torch.float32) else x.to(dtype)


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Returns the tensor in a dtype."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _multiplied(
    matrices: list[EdgeMatrix],
    mean: bool,
    x: Tensor | TableRows,
    dtype: torch.dtype,
    weights: list[Tensor],
    self_weight: Tensor | None,
    bias: Tensor | None,
    self_x: Tensor | None,
    transpose_of: Callable[[EdgeMatrix], EdgeMatrix | None],
) -> Tensor:
    """Sums, or means, and their products in `dtype`; `x` may be float32."""
    count = matrices[0].num_destinations
    matrices = [matrix.trim_isolated_tail() for matrix in matrices]
    # Without a gradient of x, autograd needs the products only.
    fuses = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
    copies = not fuses and (isinstance(x, TableRows) or x.dtype != dtype)
    alone = len(matrices) == 1 and matrices[0].num_destinations == count
    own_gradient = self_x is not None and self_x.requires_grad
    if copies and alone and self_weight is not None and not own_gradient:
        rows = sums_and_self_rows(matrices[0], x, mean, self_x, dtype)
        return F.linear(rows, torch.cat([weights[0], self_weight], 1).to(dtype), bias)
    weights = [_as(dtype, weight) for weight in weights]
    self_weight = None if self_weight is None else _as(dtype, self_weight)
    if isinstance(x, Tensor) and fuses:
        transposes = [transpose_of(matrix) for matrix in matrices]
        own = None if self_x is None else _as(dtype, self_x)
        result: tuple[Tensor, ...] = Linear.apply(
            x, own, self_weight, bias, count, matrices, mean, transposes, *weights
        )
        return result[0]
    if self_x is None and self_weight is not None:
        self_x = as_tensor(x, count)
    if isinstance(x, Tensor):
        sums = (matrix.sum_rows_as(dtype, x, mean) for matrix in matrices)
    else:
        sums = (sum_table_as(dtype, matrix, x, mean) for matrix in matrices)
    own = None if self_x is None else _as(dtype, self_x)
    return products(count, sums, weights, own, self_weight, bias)


def _check(matrices: list[EdgeMatrix], of: SumLinear) -> None:
    x, self_weight, self_x = of.x, of.self_weight, of.self_x
    count = matrices[0].num_destinations
    for other in matrices[1:]:
        if (other.num_sources, other.num_destinations) != (matrices[0].num_sources, count):
            raise ValueError(f"structures must have the same nodes, got {matrices}")
    if self_x is None and self_weight is not None:
        check_first_rows(matrices[0], x)
    elif len(x.shape) != 2 or x.shape[0] != matrices[0].num_sources:
        raise ValueError(f"x must be [{matrices[0].num_sources}, columns], got {list(x.shape)}")
    if x.device != matrices[0].device:
        raise ValueError(f"x must be on {matrices[0].device} as the structure, got {x.device}")
    if self_x is not None and self_weight is None:
        raise ValueError("self_x needs self_weight, got none")
    if self_x is not None and (self_x.dim() != 2 or self_x.shape[0] != count):
        raise ValueError(f"self_x must be [{count}, columns], got {list(self_x.shape)}")
    of.check()
    if isinstance(x, Tensor):
        check_operand("x", x, matrices[0].device, matrices[0].num_sources, "sources")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


def products(
    count: int,
    sums: Iterable[Tensor],
    weights: list[Tensor],
    self_x: Tensor | None,
    self_weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Adds the products of sums and weights; returns [count, out].

    A sum may have fewer than `count` rows; the product is zero in the others. Each sum is computed
    just before its product and can be freed after it.
    """
    out = None if self_x is None or self_weight is None else F.linear(self_x, self_weight, bias)
    for rows, weight in zip(sums, weights, strict=True):
        if out is None and rows.shape[0] == count:
            out = F.linear(rows, weight, bias)
            continue
        if out is None:
            out = rows.new_zeros(count, weight.shape[0])
            out = out if bias is None else out + bias
        if rows.shape[0] == count:
            out = add_product(out, rows, weight.t())
        elif torch.is_grad_enabled():
            out = _AddProduct.apply(out, rows, weight)
        else:
            first_rows(out, rows.shape[0]).addmm_(rows, weight.t())
    assert out is not None
    return out


def add_product(out: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Returns ``out + rows @ matrix``; adds to `out` in place where dtypes allow it."""
    if torch.is_autocast_enabled(rows.device.type) or rows.dtype != out.dtype:
        return out + rows @ matrix
    return out.addmm_(rows, matrix)


class _AddProduct(Function):
    """``out[:rows] += rows @ weight.T`` in place; autograd of the slice would copy the gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.mark_dirty(out)
        first_rows(out, rows.shape[0]).addmm_(rows, weight.t())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        _, needs_rows, needs_weight = ctx.needs_input_grad
        first = first_rows(grad, rows.shape[0])
        return (
            grad,
            first @ weight if needs_rows else None,
            first.t() @ rows if needs_weight else None,
        )


class Linear(Function):
    """Sums and their products; the sums that gradients of weights need are results too.

    So second derivatives reach `x` through these sums without keeping `x` itself.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        self_x: Tensor | None,
        self_weight: Tensor | None,
        bias: Tensor | None,
        count: int,
        matrices: list[EdgeMatrix],
        mean: bool,
        transposes: list[EdgeMatrix | None],
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.matrices, ctx.mean, ctx.transposes = matrices, mean, transposes
        ctx.dtype, dtype, needs = x.dtype, weights[0].dtype, ctx.needs_input_grad
        saved_sums: list[Tensor | None] = []

        def reduced() -> Iterator[Tensor]:
            for matrix, need in zip(matrices, needs[8:], strict=True):
                sums = matrix.sum_rows_as(dtype, x, mean)
                saved_sums.append(sums if need else None)
                yield sums

        rows = self_x
        if self_x is None and self_weight is not None:
            rows = _as(dtype, first_rows(x, count))
        out = products(count, reduced(), list(weights), rows, self_weight, bias)
        ctx.self_is_x = self_x is None
        if self_x is None and x.dtype == dtype:
            rows = x  # A view of an input would not be freed with it.
        ctx.save_for_backward(rows if needs[2] else None, self_weight, *weights, *saved_sums)
        return out, *(sums for sums in saved_sums if sums is not None)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor | None, *grad_kept: Tensor | None) -> tuple[Any, ...]:
        if grad is None or torch.is_grad_enabled() or any(g is not None for g in grad_kept):
            return _gradients_again(ctx, grad, list(grad_kept))
        grad = grad.contiguous()
        self_x, self_weight, *rest = ctx.saved_tensors
        weights, saved_sums = rest[: len(ctx.matrices)], rest[len(ctx.matrices) :]
        needs = ctx.needs_input_grad
        # The same product as for the gradient of a linear layer, which libraries are tuned for.
        grad_weights = [
            None if sums is None else first_rows(grad, sums.shape[0]).t() @ sums
            for sums in saved_sums
        ]
        grad_self_weight = grad.t() @ first_rows(self_x, grad.shape[0]) if needs[2] else None
        grad_self_x = grad @ self_weight if needs[1] else None
        of_x = None
        if needs[0]:
            of_x = _to_sources(ctx, grad, weights, self_weight if ctx.self_is_x else None)
        grad_bias = grad.sum(0) if needs[3] else None
        others = grad_self_x, grad_self_weight, grad_bias, None, None, None, None
        return of_x, *others, *grad_weights


def _to_sources(
    ctx: Any, grad: Tensor, weights: list[Tensor], self_weight: Tensor | None
) -> Tensor:
    """Returns the gradient of x, by the edges of each matrix and by the self term."""
    count, out = grad.shape[0], None
    if self_weight is not None and accumulates_in(ctx.dtype) and None in ctx.transposes:
        # Atomics add to the gradient of the self term instead of to zeros.
        shape = ctx.matrices[0].num_sources, self_weight.shape[1]
        out = grad.new_empty(shape, dtype=ctx.dtype)
        if ctx.dtype == grad.dtype:
            torch.mm(grad, self_weight, out=first_rows(out, count))
        else:
            first_rows(out, count).copy_(grad @ self_weight)
        if count < shape[0]:
            out[count:].zero_()
        self_weight = None
    for matrix, transposes, weight in zip(ctx.matrices, ctx.transposes, weights, strict=True):
        rows, e = first_rows(grad, matrix.num_destinations) @ weight, None
        if ctx.mean:
            rows, e = gradient_of_sums(matrix, rows)
        message = "copy_u" if e is None else "mul"
        if out is None:
            out = sum_to_sources(matrix, transposes, rows, e, message, ctx.dtype)
        else:
            out = add_sum_to_sources_(out, matrix, transposes, rows, e, message)
    assert out is not None
    if self_weight is not None:
        if ctx.dtype == grad.dtype:
            first_rows(out, count).addmm_(grad, self_weight)
        else:
            first_rows(out, count).add_(grad @ self_weight)
    return out


def _gradients_again(
    ctx: Any, grad: Tensor | None, grad_kept: list[Tensor | None]
) -> tuple[Any, ...]:
    """As the backward of :class:`Linear`, differentiable, and with gradients of its sums.

    Args:
        ctx: of the function.
        grad: of the products, or None.
        grad_kept: of each of the sums that are results, or None.
    """
    needs = ctx.needs_input_grad
    self_x, self_weight, *rest = ctx.saved_tensors
    weights, saved_sums = rest[: len(ctx.matrices)], rest[len(ctx.matrices) :]
    out: Tensor | None = None
    if needs[0] and grad is not None and ctx.self_is_x and self_weight is not None:
        isolated = ctx.matrices[0].num_sources - grad.shape[0]
        out = F.pad(grad @ self_weight, (0, 0, 0, isolated))
    grad_weights: list[Tensor | None] = []
    edges = zip(ctx.matrices, ctx.transposes, weights, saved_sums, strict=True)
    for matrix, transpose, weight, sums in edges:
        rows = None if grad is None else grad[: matrix.num_destinations]
        grad_weights.append(None if rows is None or sums is None else rows.t() @ sums)
        of_sums = None if sums is None else grad_kept.pop(0)
        if needs[0] and (rows is not None or of_sums is not None):
            products = None if rows is None else rows @ weight
            terms = [term for term in (products, of_sums) if term is not None]
            total = terms[0] if len(terms) == 1 else terms[0] + terms[1]
            total = divide_by_degrees(matrix, total) if ctx.mean else total
            to_sources = source_sums(matrix, transpose, total.contiguous(), None, "copy_u")
            out = to_sources if out is None else out + to_sources
    if grad is None:
        return out, *(None,) * 7, *grad_weights
    others = (
        grad @ self_weight if needs[1] else None,
        grad.t() @ self_x[: grad.shape[0]] if needs[2] else None,
        grad.sum(0) if needs[3] else None,
        *(None,) * 4,
    )
    return out, *others, *grad_weights
