"""Reductions over the partitioned dimension: local, then over the ranks; results are plain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.exchange.transport import ReduceOp, reductions_of
from peergraph.fullgraph.tensor.along_columns import OverRows, over_rows, resolve_dims
from peergraph.fullgraph.tensor.chunk_rows import serves_chunks
from peergraph.fullgraph.tensor.conversions import from_local, replicated, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import FUNCTION_RULES, function_rule, rule

aten = torch.ops.aten
Dims = int | Sequence[int] | None


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


def _sum_rows(
    x: PartitionedTensor,
    dims: list[int],
    keepdim: bool,
    dtype: torch.dtype | None,
    scale: float,
) -> Tensor:
    """A sum over dimensions that include the partitioned one, multiplied by `scale`.

    Autograd's own gradient of a sum would expand the plain gradient to the rows of all ranks.
    """
    layout, dim, shape, row_dtype = x.row_layout, x.partitioned_dim, x._local.shape, x._local.dtype

    def total(rows: Tensor) -> Tensor:
        local = take_rows(rows, layout, dim)._local
        sums = sum_of_ranks(local.sum(dims, keepdim, dtype=dtype), layout.group)
        return sums if scale == 1 else sums * scale

    def spread(grad: Tensor) -> Tensor:
        if not keepdim:
            for place in sorted(dims):
                grad = grad.unsqueeze(place)
        if scale != 1:
            grad = grad * scale
        return wrap(grad.to(row_dtype).expand(shape), layout, dim)

    return linear(x, total, spread)


def _register_sum(function: Any, *overloads: OpOverload) -> None:
    method = getattr(Tensor, function.__name__)

    @serves_chunks(function, method)
    @rule(*overloads)
    def reduce_rows(
        x: PartitionedTensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        dims = resolve_dims(dim, x._local.dim())
        if x.partitioned_dim not in dims:
            local = function(x._local, dims, keepdim, dtype=dtype)
            return x.with_rows(local, dim_after(x, dims, keepdim))
        total = sum_of_ranks(x._local.sum(dims, keepdim, dtype=dtype), x.row_layout.group)
        return total / count_of(x, dims) if function is torch.mean else total

    @function_rule(function, method)
    def run(
        input: PartitionedTensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        axis: Dims = None,
    ) -> Tensor:
        dims = resolve_dims(axis if dim is None else dim, input._local.dim())
        with torch._C.DisableTorchFunctionSubclass():
            if input.partitioned_dim not in dims or not input.requires_grad:
                plain: Tensor = function(input, dim=dims, keepdim=keepdim, dtype=dtype)
                return plain
        count = count_of(input, dims) if function is torch.mean else 1
        scale = 1 / count if count else float("nan")
        return _sum_rows(input, dims, keepdim, dtype, scale)


_register_sum(torch.sum, aten.sum.default, aten.sum.dim_IntList)
_register_sum(torch.mean, aten.mean.default, aten.mean.dim)


def extreme(x: PartitionedTensor, dims: list[int], keepdim: bool, op: ReduceOp) -> Tensor:
    """The maximum or minimum over dimensions that include the partitioned one."""
    if count_of(x, dims) == 0:
        raise IndexError(f"{op}: the tensor of shape {tuple(x.shape)} has no elements to reduce")
    local = x._local
    if local.shape[x.partitioned_dim] == 0:
        shape = list(local.shape)
        shape[x.partitioned_dim] = 1
        local = local.new_full(shape, worst_value(local.dtype, op))
    reduced = local.amax(dims, keepdim) if op == "max" else local.amin(dims, keepdim)
    return _all_reduce(x, reduced, op)


def _all_reduce(x: PartitionedTensor, local: Tensor, op: ReduceOp) -> Tensor:
    return reductions_of(x.row_layout.group).all_reduce(local, op)


def worst_value(dtype: torch.dtype, op: ReduceOp) -> Any:
    """Returns the value that no maximum or minimum of others takes."""
    if dtype == torch.bool:
        return op == "min"
    if dtype.is_floating_point:
        return -math.inf if op == "max" else math.inf
    info = torch.iinfo(dtype)
    return info.min if op == "max" else info.max


def _op_of(of: OverRows) -> ReduceOp:
    return "max" if "max" in of.name else "min"


@over_rows(aten.amax.default, aten.max.default, aten.amin.default, aten.min.default)
def extreme_value(of: OverRows) -> Tensor:
    """The maximum or minimum."""
    return extreme(of.x, of.dims, of.keepdim, _op_of(of))


@over_rows(aten.max.dim, aten.min.dim)
def extreme_value_and_row(of: OverRows) -> tuple[Tensor, Tensor]:
    """The maximum or minimum, and the first of the user's rows that has it."""
    return _with_rows(of.x, extreme(of.x, of.dims, True, _op_of(of)), of.keepdim)


def _with_rows(x: PartitionedTensor, values: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    dim = x.partitioned_dim
    rows = _first_place(x, values, _column(x, x.row_layout.positions), [dim], x.row_layout.size)
    return (values, rows) if keepdim else (values.squeeze(dim), rows.squeeze(dim))


def _column(x: PartitionedTensor, rows: Tensor) -> Tensor:
    shape = [1] * x._local.dim()
    shape[x.partitioned_dim] = -1
    return rows.view(shape)


def _first_place(
    x: PartitionedTensor, values: Tensor, places: Tensor, dims: list[int], last: int
) -> Tensor:
    """The smallest of `places` where `x` is `values` (or NaN), over `dims`, which stay."""
    is_extreme = (x._local == values) | (x._local != x._local)
    candidates = torch.where(is_extreme, places, last)
    if candidates.shape[x.partitioned_dim] == 0:
        shape = list(candidates.shape)
        shape[x.partitioned_dim] = 1
        candidates = candidates.new_full(shape, last)
    return _all_reduce(x, candidates.amin(dims, True), "min")


class ExtremeRows(Function):
    """Maximum or minimum over rows, with the gradient at the first row that has it."""

    @staticmethod
    def forward(
        ctx: Any, x: PartitionedTensor, keepdim: bool, op: ReduceOp
    ) -> tuple[Tensor, Tensor]:
        values = extreme(x, [x.partitioned_dim], True, op)
        values, rows = _with_rows(x, values, keepdim)
        ctx.row_layout, ctx.dim, ctx.keepdim = x.row_layout, x.partitioned_dim, keepdim
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
        is_row = ctx.row_layout.positions.view(shape) == rows
        local = torch.where(is_row, replicated(grad, ctx.row_layout.group), 0)
        return from_local(local, ctx.row_layout, ctx.dim), None, None


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
def argument(of: OverRows) -> Tensor:
    """The user's row of the maximum or minimum, or its place among all elements."""
    x, dims = of.x, of.dims
    values = extreme(x, dims, True, _op_of(of))
    local, dim = x._local, x.partitioned_dim
    places = _column(x, x.row_layout.positions)
    last = x.row_layout.size
    is_of_all = len(dims) == local.dim()
    if is_of_all:
        inner, outer = math.prod(local.shape[dim + 1 :]), math.prod(local.shape[:dim])
        columns = torch.arange(outer * inner, device=local.device)
        outer_place = (columns // max(inner, 1)).view(
            *local.shape[:dim], 1, *local.shape[dim + 1 :]
        )
        inner_place = (columns % max(inner, 1)).view(outer_place.shape)
        places = (outer_place * last + places) * inner + inner_place
        last = outer * last * inner
    rows = _first_place(x, values, places, dims, last)
    return rows if of.keepdim else rows.squeeze(dims)


@over_rows(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)
def any_of(of: OverRows) -> Tensor:
    """Whether an element is true."""
    return of.all_reduce(of.x._local.bool().sum(of.dims, of.keepdim) > 0, "max")


@over_rows(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)
def all_of(of: OverRows) -> Tensor:
    """Whether all elements are true."""
    return of.all_reduce(of.x._local.logical_not().sum(of.dims, of.keepdim) == 0, "min")


@over_rows(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(of: OverRows) -> Tensor:
    """How many elements are not zero."""
    return of.all_reduce((of.x._local != 0).sum(of.dims))


@over_rows(aten.nansum.default)
def nansum(of: OverRows) -> Tensor:
    """The sum without NaN."""
    dtype = of.options.get("dtype")
    return of.all_reduce(of.x._local.nansum(of.dims, of.keepdim, dtype=dtype))


@over_rows(aten.prod.default, aten.prod.dim_int)
def product(of: OverRows) -> Tensor:
    """The product of all elements, or over rows."""
    local = of.x._local
    if len(of.dims) == local.dim():
        local, dim = local.reshape(-1), 0
    else:
        [dim] = of.dims
    return of.all_reduce(local.prod(dim, of.keepdim, dtype=of.options.get("dtype")), "prod")


@over_rows(
    *(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dtype),
    *(aten.norm.ScalarOpt_dim_dtype, aten.linalg_vector_norm.default),
)
def vector_norm(of: OverRows) -> Tensor:
    """The p-norm."""
    x, dims, keepdim = of.x, of.dims, of.keepdim
    order, dtype = of.options.get("ord", of.options.get("p")), of.options.get("dtype")
    order = 2 if order is None else order
    local = x._local if dtype is None else x._local.to(dtype)
    if math.isinf(order):
        magnitudes = wrap(local.abs(), x.row_layout, x.partitioned_dim)
        return extreme(magnitudes, dims, keepdim, "max" if order > 0 else "min")
    if order == 0:
        return of.all_reduce((local != 0).to(local.dtype).sum(dims, keepdim))
    if order == 1:
        return of.all_reduce(local.abs().sum(dims, keepdim))
    if order == 2:
        return of.all_reduce((local * local).sum(dims, keepdim)).sqrt()
    total = of.all_reduce(local.abs().pow(order).sum(dims, keepdim))
    result: Tensor = total.pow(1 / order)
    return result


@over_rows(
    *(aten.var.correction, aten.std.correction),
    *(aten.var_mean.correction, aten.std_mean.correction),
)
def variance(of: OverRows) -> Tensor | tuple[Tensor, Tensor]:
    """The variance or standard deviation, with or without the mean."""
    result, mean = moments(of.x, of.dims, of.options.get("correction"), of.keepdim)
    result = result.sqrt() if of.name.startswith("std") else result
    return (result, mean) if of.name.endswith("mean") else result


def moments(
    x: PartitionedTensor, dims: list[int], correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Variance and mean over dimensions that include the partitioned one. Plain; collective."""
    count = count_of(x, dims)
    mean = _all_reduce(x, x._local.sum(dims, True), "sum") / count
    squares = _all_reduce(x, (x._local - mean).square().sum(dims, keepdim), "sum")
    divisor = max(count - (1 if correction is None else correction), 0)
    return squares / divisor, mean if keepdim else mean.squeeze(dims)


@over_rows(aten.logsumexp.default)
def logsumexp(of: OverRows) -> Tensor:
    """The logarithm of the sum of exponentials."""
    x = of.x
    if not x._local.is_floating_point():  # integers could overflow
        x = wrap(x._local.to(torch.get_default_dtype()), x.row_layout, x.partitioned_dim)
    largest = extreme(x, of.dims, True, "max")
    shift = torch.where(largest.isinf(), 0, largest)
    total = of.all_reduce((x._local - shift).exp().sum(of.dims, True)).log() + shift
    return total if of.keepdim else total.squeeze(of.dims)


@over_rows(aten._softmax.default, aten._log_softmax.default)
def softmax(of: OverRows) -> PartitionedTensor:
    """Normalised over all rows, as attention pooling does."""
    x = of.x
    shifted = x._local - extreme(x, of.dims, True, "max")
    exponentials = shifted.exp()
    total = of.all_reduce(exponentials.sum(of.dims, True))
    local = shifted - total.log() if "log" in of.name else exponentials / total
    return wrap(local.contiguous(), x.row_layout, x.partitioned_dim)


@over_rows(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(of: OverRows) -> PartitionedTensor:
    """The gradient of :func:`softmax`."""
    grad, output = of.x, of.options["output"]
    g, y = grad._local, output._local
    if "log" in of.name:
        local = g - y.exp() * of.all_reduce(g.sum(of.dims, True))
    else:
        local = y * (g - of.all_reduce((g * y).sum(of.dims, True)))
    local = local.to(of.options["input_dtype"]).contiguous()  # as torch's kernel
    return wrap(local, grad.row_layout, grad.partitioned_dim)
