"""Sums of neighbours and of a destination's own row, as GIN and GCN take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.spmm import spmm
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import runs_plainly, use_deterministic
from peergraph.aggregate.ops.spmm import g_spmm
from peergraph.aggregate.ops.spmm_transposed import (
    add_spmm_transposed,
    spmm_transposed,
    sums_in_dtype,
)
from peergraph.aggregate.sparse.csc import Backward, Csc
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.memory import TableRows


def spmm_add_self(
    csc: Csc,
    x: Tensor | TableRows,
    own: Tensor,
    e: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """``g_spmm(csc, "copy_u" or "mul", "sum", x, e) + own * x[:destinations] + bias``.

    The destinations are the first sources, as in a mini-batch and in a whole graph. Gradients reach
    `x` in the one matrix that the sums need anyhow, and destinations that no edge reaches have no
    part in the sums. Differentiable once in `x`, `own`, `e` and `bias`, and as often as
    :func:`g_spmm` where `x` needs no gradient.

    Args:
        csc: the structure, with at least as many sources as destinations.
        x: [sources, columns] as for :func:`g_spmm`, or rows of a table.
        own: [] or [1] for all rows, or [destinations, 1]; on the same device.
        e: [edges] weights, or None for ones.
        bias: [columns], or None.
        backward, deterministic: as for :func:`g_spmm`.

    Returns:
        [destinations, columns].

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: shapes or devices that do not go together.
        TypeError: as :func:`g_spmm`.
    """
    check_own_rows(csc, x)
    count = csc.num_destinations
    if tuple(own.shape) not in ((), (1,), (count, 1)):
        raise ValueError(f"own must be [], [1] or [{count}, 1], got {list(own.shape)}")
    if e is not None and tuple(e.shape) != (csc.num_edges,):
        raise ValueError(f"e must be [{csc.num_edges}], got {list(e.shape)}")
    if bias is not None and tuple(bias.shape) != tuple(x.shape[1:]):
        raise ValueError(f"bias must be {list(x.shape[1:])}, got {list(bias.shape)}")
    message = "copy_u" if e is None else "mul"
    same = {t.dtype for t in (own, e, bias) if t is not None} == {x.dtype}
    if isinstance(x, TableRows) or not same or not pays_to_fuse(x):
        out = g_spmm(csc, message, "sum", x, e, backward=backward, deterministic=deterministic)
        out = torch.addcmul(out, own_rows(x, count), own)
        return out if bias is None else out + bias
    if x.device != csc.device:
        raise ValueError(f"x must be on {csc.device} as the structure, got {x.device}")
    csc = csc.trim_isolated_tail()
    transpose = csc.gradient_matrix(backward, use_deterministic(deterministic))
    weight = None if e is None else e.unsqueeze(1)
    result: Tensor = _SpmmAddSelf.apply(  # type: ignore[no-untyped-call]
        x, weight, own, bias, count, csc, transpose
    )
    return result


def check_own_rows(csc: Csc, x: Tensor | TableRows) -> None:
    """Raises ValueError unless the destinations of `csc` can be the first rows of `x`."""
    if len(x.shape) != 2 or x.shape[0] != csc.num_sources:
        raise ValueError(f"x must be [{csc.num_sources}, columns], got {list(x.shape)}")
    if csc.num_sources < csc.num_destinations:
        raise ValueError(f"destinations must be the first sources, got {csc}")


def pays_to_fuse(x: Tensor) -> bool:
    """Whether there are gradients to save passes of, by a function that differentiates once."""
    return x.requires_grad and torch.is_grad_enabled() and x.numel() > 0 and runs_plainly(x)


def own_rows(x: Tensor | TableRows, count: int) -> Tensor:
    """The first rows as a tensor."""
    return x.first(count).gather() if isinstance(x, TableRows) else x[:count]


class _SpmmAddSelf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        e: Tensor | None,
        own: Tensor,
        bias: Tensor | None,
        count: int,
        csc: Csc,
        transpose: CsrMatrix | None,
    ) -> Tensor:
        ctx.csc, ctx.transpose, ctx.count = csc, transpose, count
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:3]) else None, e, own)
        message = "copy_u" if e is None else "mul"
        sums = spmm(x, e, *csc.rows.tensors, message, False)
        reached = csc.num_destinations
        if reached == count:
            out = sums.addcmul_(x[:count], own)
            return out if bias is None else out.add_(bias)
        first = x[:count]
        out = first * own if bias is None else torch.addcmul(bias, first, own)
        out[:reached].add_(sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, e, own = ctx.saved_tensors
        csc: Csc = ctx.csc
        count = ctx.count
        grad = grad.contiguous()
        grad_x = grad_e = grad_own = None
        if ctx.needs_input_grad[0]:
            grad_x = _to_sources(csc, ctx.transpose, grad, e, own)
        if ctx.needs_input_grad[1]:
            grad_e = sddmm(x, grad, *csc.rows.tensors, "mul", "uv", 1, grad.shape[1])
        if ctx.needs_input_grad[2]:
            grad_own = (grad * x[:count]).sum_to_size(own.shape)
        grad_bias = grad.sum(0) if ctx.needs_input_grad[3] else None
        return grad_x, grad_e, grad_own, grad_bias, None, None, None


def _to_sources(
    csc: Csc, transpose: CsrMatrix | None, grad: Tensor, e: Tensor | None, own: Tensor
) -> Tensor:
    message, count = "copy_u" if e is None else "mul", grad.shape[0]
    if transpose is None and sums_in_dtype(grad.dtype):
        out = grad.new_empty(csc.num_sources, grad.shape[1])
        torch.mul(grad, own, out=out[:count])
        out[count:].zero_()
        return add_spmm_transposed(out, csc, None, grad, e, message)
    out = spmm_transposed(csc, transpose, grad, e, message)
    out[:count].addcmul_(grad, own)
    return out
