"""Sums of neighbours and of a destination's own row, as in GIN and GCN."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.edge_maps import edge_products, source_sums
from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.operands import (
    as_tensor,
    pays_to_fuse,
    use_deterministic,
)
from peergraph.aggregate.ops.source_gradients import (
    accumulates_in,
    add_sum_to_sources_,
    sum_to_sources,
)
from peergraph.aggregate.ops.spmm import Sum, spmm
from peergraph.aggregate.sparse.edge_matrix import Backward, EdgeMatrix, check_first_rows
from peergraph.autograd import Function
from peergraph.memory import TableRows


class SumAddSelf(NamedTuple):
    """What :func:`peergraph.aggregate.spmm_add_self` computes, without the structure."""

    x: Tensor | TableRows
    self_weight: Tensor
    e: Tensor | None = None
    bias: Tensor | None = None
    backward: Backward = "auto"
    deterministic: bool | None = None

    @property
    def message(self) -> str:
        """The message of :class:`Sum`."""
        return "copy_u" if self.e is None else "mul"


def spmm_add_self(matrix: EdgeMatrix, of: SumAddSelf) -> Tensor:
    """Sums messages and weighted first rows: :func:`peergraph.aggregate.spmm_add_self`."""
    x, self_weight, e, bias, backward, deterministic = of
    check_first_rows(matrix, x)
    count = matrix.num_destinations
    if tuple(self_weight.shape) not in ((), (1,), (count, 1)):
        raise ValueError(
            f"self_weight must be [], [1] or [{count}, 1], got {list(self_weight.shape)}"
        )
    if e is not None and tuple(e.shape) != (matrix.num_edges,):
        raise ValueError(f"e must be [{matrix.num_edges}], got {list(e.shape)}")
    if bias is not None and tuple(bias.shape) != tuple(x.shape[1:]):
        raise ValueError(f"bias must be {list(x.shape[1:])}, got {list(bias.shape)}")
    same = {t.dtype for t in (self_weight, e, bias) if t is not None} == {x.dtype}
    if isinstance(x, TableRows) or not same or not pays_to_fuse(x):
        out = spmm(matrix, Sum(of.message, "sum", x, e, backward, deterministic))
        out = torch.addcmul(out, as_tensor(x, count), self_weight)
        return out if bias is None else out + bias
    if x.device != matrix.device:
        raise ValueError(f"x must be on {matrix.device} as the structure, got {x.device}")
    matrix = matrix.trim_isolated_tail()
    fixed_order = use_deterministic(deterministic)
    transpose = matrix.gradient_matrix(backward, fixed_order, x.shape[1])
    weight = None if e is None else e.unsqueeze(1)
    result: Tensor = SpmmAddSelf.apply(x, weight, self_weight, bias, count, matrix, transpose)
    return result


class SpmmAddSelf(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        e: Tensor | None,
        self_weight: Tensor,
        bias: Tensor | None,
        count: int,
        matrix: EdgeMatrix,
        transpose: EdgeMatrix | None,
    ) -> Tensor:
        ctx.matrix, ctx.transpose, ctx.count = matrix, transpose, count
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:3]) else None, e, self_weight)
        message = "copy_u" if e is None else "mul"
        sums = matrix.sum_messages(x, e, message)
        kept_rows = matrix.num_destinations
        if kept_rows == count:
            out = sums.addcmul_(x[:count], self_weight)
            return out if bias is None else out.add_(bias)
        first = x[:count]
        out = first * self_weight if bias is None else torch.addcmul(bias, first, self_weight)
        out[:kept_rows].add_(sums)
        return out

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e, self_weight = ctx.saved_tensors
        matrix: EdgeMatrix = ctx.matrix
        count = ctx.count
        grad = grad.contiguous()
        grad_x = grad_e = grad_self_weight = None
        if ctx.needs_input_grad[0]:
            to_sources = _to_sources_again if torch.is_grad_enabled() else _to_sources
            grad_x = to_sources(matrix, ctx.transpose, grad, e, self_weight)
        if ctx.needs_input_grad[1]:
            rows, shape = grad[: matrix.num_destinations], (1, grad.shape[1])
            grad_e = edge_products(matrix, ctx.transpose, x, rows, "mul", "uv", shape)
        if ctx.needs_input_grad[2]:
            grad_self_weight = (grad * x[:count]).sum_to_size(self_weight.shape)
        grad_bias = grad.sum(0) if ctx.needs_input_grad[3] else None
        return grad_x, grad_e, grad_self_weight, grad_bias, None, None, None


def _to_sources(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    grad: Tensor,
    e: Tensor | None,
    self_weight: Tensor,
) -> Tensor:
    message, count = "copy_u" if e is None else "mul", grad.shape[0]
    if transpose is None and accumulates_in(grad.dtype):
        out = grad.new_empty(matrix.num_sources, grad.shape[1])
        torch.mul(grad, self_weight, out=out[:count])
        out[count:].zero_()
        return add_sum_to_sources_(out, matrix, None, grad, e, message)
    out = sum_to_sources(matrix, transpose, grad, e, message)
    out[:count].addcmul_(grad, self_weight)
    return out


def _to_sources_again(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    grad: Tensor,
    e: Tensor | None,
    self_weight: Tensor,
) -> Tensor:
    """As :func:`_to_sources`, differentiable."""
    message = "copy_u" if e is None else "mul"
    sums = source_sums(matrix, transpose, grad[: matrix.num_destinations], e, message)
    return sums + F.pad(grad * self_weight, (0, 0, 0, matrix.num_sources - grad.shape[0]))
