"""Reductions over the partitioned dimension: local, then over the ranks; results are plain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.transport import ReduceOp, Transport
from peergraph.fullgraph.tensor.along_columns import over_rows
from peergraph.fullgraph.tensor.conversions import from_local, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import FUNCTION_RULES
from peergraph.fullgraph.tensor.sums import count_of

aten = torch.ops.aten
Dims = list[int]


def all_reduce(x: PartitionedTensor, local: Tensor, op: ReduceOp = "sum") -> Tensor:
    """The reduction of each rank's `local` over the ranks of `x`."""
    return Transport.of(x.layout.group).all_reduce(local, op)


def extreme(x: PartitionedTensor, dims: Dims, keepdim: bool, op: ReduceOp) -> Tensor:
    """The maximum or minimum over dimensions that include the partitioned one."""
    if count_of(x, dims) == 0:
        raise IndexError(f"{op}: the tensor of shape {tuple(x.shape)} has no elements to reduce")
    local = x._local
    if local.shape[x.partitioned_dim] == 0:
        shape = list(local.shape)
        shape[x.partitioned_dim] = 1
        local = local.new_full(shape, _worst(local.dtype, op))
    reduced = local.amax(dims, keepdim) if op == "max" else local.amin(dims, keepdim)
    return all_reduce(x, reduced, op)


def _worst(dtype: torch.dtype, op: ReduceOp) -> Any:
    if dtype == torch.bool:
        return op == "min"
    if dtype.is_floating_point:
        return -math.inf if op == "max" else math.inf
    info = torch.iinfo(dtype)
    return info.min if op == "max" else info.max


@over_rows(aten.amax.default, aten.max.default)
def amax(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """The maximum."""
    return extreme(x, dims, keepdim, "max")


@over_rows(aten.amin.default, aten.min.default)
def amin(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """The minimum."""
    return extreme(x, dims, keepdim, "min")


@over_rows(aten.max.dim)
def max_with_rows(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The maximum and the first of the user's rows that has it."""
    values = extreme(x, dims, True, "max")
    return _with_rows(x, values, keepdim)


@over_rows(aten.min.dim)
def min_with_rows(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The minimum and the first of the user's rows that has it."""
    values = extreme(x, dims, True, "min")
    return _with_rows(x, values, keepdim)


def _with_rows(x: PartitionedTensor, values: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    dim = x.partitioned_dim
    rows = _first_place(x, values, _column(x, x.layout.positions), [dim], x.layout.size)
    return (values, rows) if keepdim else (values.squeeze(dim), rows.squeeze(dim))


def _column(x: PartitionedTensor, rows: Tensor) -> Tensor:
    shape = [1] * x._local.dim()
    shape[x.partitioned_dim] = -1
    return rows.view(shape)


def _first_place(
    x: PartitionedTensor, values: Tensor, places: Tensor, dims: Dims, last: int
) -> Tensor:
    """The smallest of `places` where `x` is `values` (or NaN), over `dims`, which stay."""
    found = (x._local == values) | (x._local != x._local)
    candidates = torch.where(found, places, last)
    if candidates.shape[x.partitioned_dim] == 0:
        shape = list(candidates.shape)
        shape[x.partitioned_dim] = 1
        candidates = candidates.new_full(shape, last)
    return all_reduce(x, candidates.amin(dims, True), "min")


class ExtremeRows(Function):
    """Maximum or minimum over rows, with the gradient at the first row that has it."""

    @staticmethod
    def forward(
        ctx: Any, x: PartitionedTensor, keepdim: bool, op: ReduceOp
    ) -> tuple[Tensor, Tensor]:
        values = extreme(x, [x.partitioned_dim], True, op)
        values, rows = _with_rows(x, values, keepdim)
        ctx.layout, ctx.dim, ctx.keepdim = x.layout, x.partitioned_dim, keepdim
        ctx.save_for_backward(rows if keepdim else rows.unsqueeze(x.partitioned_dim))
        ctx.mark_non_differentiable(rows)
        return values, rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        if not ctx.keepdim:
            grad = grad.unsqueeze(ctx.dim)
        shape = [1] * grad.dim()
        shape[ctx.dim] = -1
        is_row = ctx.layout.positions.view(shape) == rows
        local = torch.where(is_row, replicated(grad, ctx.layout.group), 0)
        return from_local(local, ctx.layout, ctx.dim), None, None


def _register_extreme(function: Any, op: ReduceOp) -> None:
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        dim = kwargs.get("dim", args[0] if args else None)
        if type(dim) is int and isinstance(input, PartitionedTensor) and input.requires_grad:
            keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
            if dim % input.dim() == input.partitioned_dim:
                values, rows = ExtremeRows.apply(input, keepdim, op)
                return torch.return_types.max((values, rows))
        with torch._C.DisableTorchFunctionSubclass():
            return function(input, *args, **kwargs)

    FUNCTION_RULES[function] = run


_register_extreme(torch.max, "max")
_register_extreme(Tensor.max, "max")
_register_extreme(torch.min, "min")
_register_extreme(Tensor.min, "min")


@over_rows(aten.argmax.default, aten.argmin.default)
def argument(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """The user's row of the maximum or minimum, or its place among all elements."""
    values = extreme(x, dims, True, "max" if overload is aten.argmax.default else "min")
    local = x._local
    places = _column(x, x.layout.positions)
    last = x.layout.size
    if dim is None:
        place = x.partitioned_dim
        inner = math.prod(local.shape[place + 1 :])
        outer = math.prod(local.shape[:place])
        columns = torch.arange(outer * inner, device=local.device)
        outer_place = (columns // max(inner, 1)).view(
            *local.shape[:place], 1, *local.shape[place + 1 :]
        )
        inner_place = (columns % max(inner, 1)).view(outer_place.shape)
        places = (outer_place * last + places) * inner + inner_place
        last = outer * last * inner
    found = _first_place(x, values, places, dims, last)
    if dim is None:
        return found.view([1] * local.dim()) if keepdim else found.view([])
    return found if keepdim else found.squeeze(x.partitioned_dim)


@over_rows(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)
def any_of(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """Whether an element is true."""
    return all_reduce(x, x._local.bool().sum(dims, keepdim) > 0, "max")


@over_rows(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)
def all_of(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """Whether all elements are true."""
    return all_reduce(x, x._local.logical_not().sum(dims, keepdim) == 0, "min")


@over_rows(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any = None
) -> Tensor:
    """How many elements are not zero."""
    return all_reduce(x, (x._local != 0).sum(dims))


@over_rows(aten.nansum.default)
def nansum(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The sum without NaN."""
    return all_reduce(x, x._local.nansum(dims, keepdim, dtype=dtype))


@over_rows(aten.prod.default)
def prod_all(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The product of all elements."""
    return all_reduce(x, x._local.prod(dtype=dtype), "prod")


@over_rows(aten.prod.dim_int)
def prod_rows(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The product over rows."""
    return all_reduce(x, x._local.prod(dim, keepdim, dtype=dtype), "prod")


@over_rows(aten.linalg_vector_norm.default)
def vector_norm(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The p-norm."""
    local = x._local if dtype is None else x._local.to(dtype)
    if math.isinf(ord):
        magnitudes = wrap(local.abs(), x.layout, x.partitioned_dim)
        return extreme(magnitudes, dims, keepdim, "max" if ord > 0 else "min")
    if ord == 0:
        return all_reduce(x, (local != 0).to(local.dtype).sum(dims, keepdim))
    if ord == 1:
        return all_reduce(x, local.abs().sum(dims, keepdim))
    if ord == 2:
        return all_reduce(x, (local * local).sum(dims, keepdim)).sqrt()
    total = all_reduce(x, local.abs().pow(ord).sum(dims, keepdim))
    result: Tensor = total.pow(1 / ord)
    return result


@over_rows(
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim_dtype,
)
def norm(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    p: float | None = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The p-norm, as `torch.norm` calls it."""
    order = 2 if p is None else p
    result: Tensor = vector_norm(overload, dims, x, order, dim, keepdim, dtype=dtype)
    return result


@over_rows(aten.var.correction, aten.std.correction)
def variance(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """The variance or standard deviation, in two passes."""
    result = moments(x, dims, correction, keepdim)[0]
    return result.sqrt() if overload is aten.std.correction else result


@over_rows(aten.var_mean.correction, aten.std_mean.correction)
def variance_and_mean(
    overload: OpOverload,
    dims: Dims,
    x: PartitionedTensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """The variance or standard deviation, and the mean."""
    result, mean = moments(x, dims, correction, keepdim)
    return result.sqrt() if overload is aten.std_mean.correction else result, mean


def moments(
    x: PartitionedTensor, dims: Dims, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Variance and mean over dimensions that include the partitioned one. Plain; collective."""
    count = count_of(x, dims)
    mean = all_reduce(x, x._local.sum(dims, True)) / count
    squares = all_reduce(x, (x._local - mean).square().sum(dims, keepdim))
    divisor = max(count - (1 if correction is None else correction), 0)
    return squares / divisor, mean if keepdim else _squeeze(mean, dims)


def _squeeze(reduced: Tensor, dims: Sequence[int]) -> Tensor:
    return reduced.squeeze(tuple(dims))


@over_rows(aten.logsumexp.default)
def logsumexp(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: Any, keepdim: bool = False
) -> Tensor:
    """The logarithm of the sum of exponentials."""
    largest = extreme(x, dims, True, "max")
    shift = torch.where(largest.isinf(), 0, largest)
    total = all_reduce(x, (x._local - shift).exp().sum(dims, True)).log() + shift
    return total if keepdim else _squeeze(total, dims)


@over_rows(aten._softmax.default, aten._log_softmax.default)
def softmax(
    overload: OpOverload, dims: Dims, x: PartitionedTensor, dim: int, half_to_float: bool
) -> PartitionedTensor:
    """Normalised over all rows, as attention pooling does."""
    shifted = x._local - extreme(x, dims, True, "max")
    exponentials = shifted.exp()
    total = all_reduce(x, exponentials.sum(dims, True))
    is_log = overload is aten._log_softmax.default
    local = shifted - total.log() if is_log else exponentials / total
    return wrap(local, x.layout, x.partitioned_dim)


@over_rows(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(
    overload: OpOverload,
    dims: Dims,
    grad: PartitionedTensor,
    output: PartitionedTensor,
    dim: int,
    input_dtype: torch.dtype,
) -> PartitionedTensor:
    """The gradient of :func:`softmax`."""
    g, y = grad._local, output._local
    if overload is aten._log_softmax_backward_data.default:
        local = g - y.exp() * all_reduce(grad, g.sum(dims, True))
    else:
        local = y * (g - all_reduce(grad, (g * y).sum(dims, True)))
    return wrap(local.to(input_dtype), grad.layout, grad.partitioned_dim)
