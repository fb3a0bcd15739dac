"""Sums and means over rows: local, then added up over the ranks, with gradients of local rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.tensor.along_columns import resolve_dims
from peergraph.fullgraph.tensor.chunk_rows import serves_chunks
from peergraph.fullgraph.tensor.conversions import from_local, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import function_rule, rule

aten = torch.ops.aten
Dims = int | Sequence[int] | None


@rule(aten.sum.default)
def sum_all(x: PartitionedTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of all elements, plain."""
    return sum_of_ranks(x._local.sum(dtype=dtype), x.row_layout.group)


@serves_chunks(torch.sum, Tensor.sum)
@rule(aten.sum.dim_IntList)
def sum_dims(
    x: PartitionedTensor,
    dim: Dims,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sums over dimensions: plain where the partitioned one is among them."""
    dims = resolve_dims(dim, x._local.dim())
    local = x._local.sum(dims, keepdim, dtype=dtype)
    if x.partitioned_dim in dims:
        return sum_of_ranks(local, x.row_layout.group)
    return x.with_rows(local, dim_after(x, dims, keepdim))


@rule(aten.mean.default)
def mean_all(x: PartitionedTensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The mean of all elements, plain."""
    return mean_dims(x, None, dtype=dtype)


@serves_chunks(torch.mean, Tensor.mean)
@rule(aten.mean.dim)
def mean_dims(
    x: PartitionedTensor,
    dim: Dims,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Means over dimensions: plain where the partitioned one is among them."""
    dims = resolve_dims(dim, x._local.dim())
    if x.partitioned_dim not in dims:
        local = x._local.mean(dims, keepdim, dtype=dtype)
        return x.with_rows(local, dim_after(x, dims, keepdim))
    total = sum_dims(x, dims, keepdim, dtype=dtype)
    return total / count_of(x, dims)


def dim_after(x: PartitionedTensor, dims: Sequence[int], keepdim: bool) -> int:
    """Returns the partitioned dimension of a result without `dims`."""
    dim = x.partitioned_dim
    return dim if keepdim else dim - sum(place < dim for place in dims)


def count_of(x: PartitionedTensor, dims: Sequence[int]) -> int:
    """Returns how many elements of all ranks a reduction over `dims` takes."""
    shape, count = x._local.shape, 1
    for dim in dims:
        count *= x.row_layout.size if dim == x.partitioned_dim else shape[dim]
    return count


class SumRows(Function):
    """A sum over dimensions that include the partitioned one, multiplied by `scale`.

    Autograd's own gradient of a sum would expand the plain gradient to the rows of all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: PartitionedTensor,
        dims: list[int],
        keepdim: bool,
        dtype: torch.dtype | None,
        scale: float,
    ) -> Tensor:
        local = x._local
        ctx.row_layout, ctx.dim, ctx.shape, ctx.dtype = (
            x.row_layout,
            x.partitioned_dim,
            local.shape,
            local.dtype,
        )
        ctx.dims, ctx.keepdim, ctx.scale = sorted(dims), keepdim, scale
        total = sum_of_ranks(local.sum(dims, keepdim, dtype=dtype), x.row_layout.group)
        return total if scale == 1 else total * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        if not ctx.keepdim:
            for dim in ctx.dims:
                grad = grad.unsqueeze(dim)
        if ctx.scale != 1:
            grad = grad * ctx.scale
        grad = replicated(grad.to(ctx.dtype), ctx.row_layout.group).expand(ctx.shape)
        return from_local(grad, ctx.row_layout, ctx.dim), None, None, None, None


@function_rule(torch.sum, Tensor.sum)
def sum_function(
    input: PartitionedTensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    axis: Dims = None,
) -> Tensor:
    """As `torch.sum`."""
    return _reduce(input, torch.sum, axis if dim is None else dim, keepdim, dtype)


@function_rule(torch.mean, Tensor.mean)
def mean_function(
    input: PartitionedTensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    axis: Dims = None,
) -> Tensor:
    """As `torch.mean`."""
    return _reduce(input, torch.mean, axis if dim is None else dim, keepdim, dtype)


def _reduce(
    x: PartitionedTensor, function: Any, dim: Dims, keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    dims = resolve_dims(dim, x._local.dim())
    with torch._C.DisableTorchFunctionSubclass():
        if x.partitioned_dim not in dims or not x.requires_grad:
            plain: Tensor = function(x, dim=dims, keepdim=keepdim, dtype=dtype)
            return plain
    count = count_of(x, dims) if function is torch.mean else 1
    scale = 1 / count if count else float("nan")
    result: Tensor = SumRows.apply(x, dims, keepdim, dtype, scale)
    return result
