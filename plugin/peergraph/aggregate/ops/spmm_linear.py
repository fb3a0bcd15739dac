"""Aggregation followed by linear maps, as SAGE, GraphConv and RGCN take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.spmm import spmm
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import runs_plainly, use_deterministic
from peergraph.aggregate.ops.spmm import REDUCTIONS, g_spmm
from peergraph.aggregate.ops.spmm_add_self import check_own_rows, own_rows, pays_to_fuse
from peergraph.aggregate.ops.spmm_transposed import (
    add_spmm_transposed,
    spmm_transposed,
    sums_in_dtype,
    sums_of_means,
)
from peergraph.aggregate.sparse.csc import Backward, Csc
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.memory import TableRows


def spmm_linear(
    structures: Csc | Sequence[Csc],
    reduce: str,
    x: Tensor | TableRows,
    weights: Tensor | Sequence[Tensor],
    self_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    own: Tensor | None = None,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """``sum of g_spmm(csc, "copy_u", reduce, x) @ weight.T, + own @ self_weight.T + bias``.

    The sum is over pairs of a structure, the edges of one relation, and its weight. Products add
    into one result, and their gradients into one matrix: no sum of two matrices is a pass of its
    own. Destinations that no edge reaches have no part in the products of sums. Gradients of sums
    and means differentiate once; the rest as its steps do.

    Args:
        structures: one, or several of the same numbers of nodes.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        x: [sources, in] as for :func:`g_spmm`, or rows of a table.
        weights: [out, in] for each structure.
        self_weight: [out, in of own], or None to leave that term out.
        bias: [out].
        own: [destinations, in of own]; None: the first rows of `x`, of which there must be as many.
        backward, deterministic: as for :func:`g_spmm`.

    Returns:
        [destinations, out].

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: shapes or devices that do not go together, or an unknown reduction.
        TypeError: dtypes that are not supported or differ.
    """
    graphs = [structures] if isinstance(structures, Csc) else list(structures)
    matrices = [weights] if isinstance(weights, Tensor) else list(weights)
    _check(graphs, reduce, x, matrices, self_weight, own, bias)
    count = graphs[0].num_destinations

    def reduced(csc: Csc) -> Tensor:
        return g_spmm(
            csc, "copy_u", reduce, x, backward=backward, deterministic=deterministic
        )  # fmt: skip

    of_x = own is None and self_weight is not None
    same = {t.dtype for t in (*matrices, self_weight, bias, own) if t is not None} == {x.dtype}
    if same and runs_plainly(x):
        graphs = [csc.trim_isolated_tail() for csc in graphs]
    sums = reduce in ("sum", "mean")
    if isinstance(x, TableRows) or not same or not sums or not pays_to_fuse(x):
        if of_x:
            own = own_rows(x, count)
        return _products(count, map(reduced, graphs), matrices, own, self_weight, bias)
    fixed = use_deterministic(deterministic)
    turned = [csc.gradient_matrix(backward, fixed) for csc in graphs]
    result: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x, own, self_weight, bias, count, graphs, reduce == "mean", turned, *matrices
    )
    return result


def _check(
    graphs: list[Csc],
    reduce: str,
    x: Tensor | TableRows,
    weights: list[Tensor],
    self_weight: Tensor | None,
    own: Tensor | None,
    bias: Tensor | None,
) -> None:
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    if not graphs or len(graphs) != len(weights):
        raise ValueError(f"each structure needs a weight, got {len(graphs)} and {len(weights)}")
    sizes = {(csc.num_sources, csc.num_destinations) for csc in graphs}
    if len(sizes) > 1:
        raise ValueError(f"structures must have the same nodes, got {graphs}")
    if own is None and self_weight is not None:
        check_own_rows(graphs[0], x)
    elif len(x.shape) != 2 or x.shape[0] != graphs[0].num_sources:
        raise ValueError(f"x must be [{graphs[0].num_sources}, columns], got {list(x.shape)}")
    if x.device != graphs[0].device:
        raise ValueError(f"x must be on {graphs[0].device} as the structure, got {x.device}")
    if own is not None and self_weight is None:
        raise ValueError("own needs self_weight, got none")
    if own is not None and (own.dim() != 2 or own.shape[0] != graphs[0].num_destinations):
        count = graphs[0].num_destinations
        raise ValueError(f"own must be [{count}, columns], got {list(own.shape)}")
    out = weights[0].shape[0] if weights[0].dim() == 2 else 0
    for i, weight in enumerate(weights):
        _check_shape(f"weights[{i}]", weight, (out, x.shape[1]))
    if self_weight is not None:
        _check_shape("self_weight", self_weight, (out, (x if own is None else own).shape[1]))
    if bias is not None:
        _check_shape("bias", bias, (out,))


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


def _products(
    count: int,
    sums: Iterable[Tensor],
    weights: list[Tensor],
    own: Tensor | None,
    self_weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """[count, out] sum of products, those of sums in the first rows.

    Each sum is made when it is needed, as a product may be all its use.
    """
    out = None if own is None or self_weight is None else F.linear(own, self_weight, bias)
    for rows, weight in zip(sums, weights, strict=True):
        if out is None and rows.shape[0] == count:
            out = F.linear(rows, weight, bias)
            continue
        if out is None:
            out = rows.new_zeros(count, weight.shape[0])
            out = out if bias is None else out + bias
        if rows.shape[0] < count:
            out = _AddProduct.apply(out, rows, weight)  # type: ignore[no-untyped-call]
        else:
            out = plus_product(out, rows, weight.t())
    assert out is not None
    return out


def plus_product(out: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """``out + rows @ matrix``, in `out` where it can be: the product adds as it is made."""
    if torch.is_autocast_enabled(rows.device.type) or rows.dtype != out.dtype:
        return out + rows @ matrix
    return out.addmm_(rows, matrix)


class _AddProduct(torch.autograd.Function):
    """``out[:rows] += rows @ weight.T`` in place; a slice's own gradient would be a copy."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.mark_dirty(out)
        out[: rows.shape[0]].addmm_(rows, weight.t())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        _, needs_rows, needs_weight = ctx.needs_input_grad
        first = grad[: rows.shape[0]]
        return (
            grad,
            first @ weight if needs_rows else None,
            first.t() @ rows if needs_weight else None,
        )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        own: Tensor | None,
        self_weight: Tensor | None,
        bias: Tensor | None,
        count: int,
        graphs: list[Csc],
        mean: bool,
        turned: list[CsrMatrix | None],
        *weights: Tensor,
    ) -> Tensor:
        ctx.graphs, ctx.mean, ctx.turned = graphs, mean, turned
        kept: list[Tensor | None] = []

        def reduced() -> Iterator[Tensor]:
            for csc, needed in zip(graphs, ctx.needs_input_grad[8:], strict=True):
                sums = spmm(x, None, *csc.rows.tensors, "copy_u", mean)
                kept.append(sums if needed else None)
                yield sums

        rows = x[:count] if own is None else own
        out = _products(count, reduced(), list(weights), rows, self_weight, bias)
        ctx.own_of_x = own is None
        of_own = (x if own is None else own) if ctx.needs_input_grad[2] else None
        ctx.save_for_backward(of_own, self_weight, *weights, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad = grad.contiguous()
        own, self_weight, *rest = ctx.saved_tensors
        weights, kept = rest[: len(ctx.graphs)], rest[len(ctx.graphs) :]
        needs = ctx.needs_input_grad
        # As the gradient of a linear layer, which is the kernel that libraries are good at.
        of_weights = [None if sums is None else grad[: sums.shape[0]].t() @ sums for sums in kept]
        of_self_weight = grad.t() @ own[: grad.shape[0]] if needs[2] else None
        of_own = grad @ self_weight if needs[1] else None
        of_x = None
        if needs[0]:
            of_x = _to_sources(ctx, grad, weights, self_weight if ctx.own_of_x else None)
        of_bias = grad.sum(0) if needs[3] else None
        return of_x, of_own, of_self_weight, of_bias, None, None, None, None, *of_weights


def _to_sources(
    ctx: Any, grad: Tensor, weights: list[Tensor], self_weight: Tensor | None
) -> Tensor:
    """The gradient of x: along the edges of each structure, and of the first rows' own term."""
    count, out = grad.shape[0], None
    if self_weight is not None and sums_in_dtype(grad.dtype) and None in ctx.turned:
        # Atomics add to the own term, which takes the place of zeros.
        out = grad.new_empty(ctx.graphs[0].num_sources, self_weight.shape[1])
        torch.mm(grad, self_weight, out=out[:count])
        out[count:].zero_()
        self_weight = None
    for csc, turned, weight in zip(ctx.graphs, ctx.turned, weights, strict=True):
        rows, e = grad[: csc.num_destinations] @ weight, None
        if ctx.mean:
            rows, e = sums_of_means(csc, rows)
        message = "copy_u" if e is None else "mul"
        if out is None:
            out = spmm_transposed(csc, turned, rows, e, message)
        else:
            out = add_spmm_transposed(out, csc, turned, rows, e, message)
    assert out is not None
    if self_weight is not None:
        out[:count].addmm_(grad, self_weight)
    return out
