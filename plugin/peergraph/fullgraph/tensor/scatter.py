"""Gathering and scattering by partitioned indices, along columns and along rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.exchange.local_operands import sum_over_ranks
from peergraph.fullgraph.exchange.transport import ReduceOp, reductions_of
from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
    resolve_dim,
)
from peergraph.fullgraph.tensor.assignment import put
from peergraph.fullgraph.tensor.conversions import distribute, from_local, replicated
from peergraph.fullgraph.tensor.index import parse_index
from peergraph.fullgraph.tensor.over_rows import worst_value
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import RULES, function_rule
from peergraph.fullgraph.tensor.row_functions import NamedRows
from peergraph.fullgraph.tensor.selection import fetch, select_rows

aten = torch.ops.aten
_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass
_REDUCE_OPS: dict[str, ReduceOp] = {"amax": "max", "amin": "min", "prod": "prod"}


def _register_along_columns(overload: OpOverload) -> None:
    """All tensors have the same rows, and `dim` is another dimension."""

    def run(x: Any, dim: int, *args: Any, **kwargs: Any) -> Any:
        if type(x) is not PartitionedTensor:
            if overload._schema.is_mutable:
                not_implemented(
                    overload,
                    "a plain tensor, equal on all ranks, cannot take partitioned values in place: "
                    "make it from partitioned rows (y.new_zeros(...), torch.zeros_like(x)); sums "
                    "over edges are over data.edge_index, not over a plain list of edges",
                )
            x = _rows_of_zeros(overload, x, args)
        if dim % x._local.dim() == x.partitioned_dim:
            not_implemented(overload, "it runs along the partitioned dimension")
        locals_ = []
        for arg in args:
            if type(arg) is PartitionedTensor:
                require_same_rows(overload, x.row_layout, arg.row_layout)
                if arg.partitioned_dim != x.partitioned_dim or arg.ndim != x.ndim:
                    not_implemented(overload, "the tensors' rows meet other dimensions")
                arg = arg._local
            elif isinstance(arg, Tensor) and arg.dim() == x._local.dim() > 1:
                not_implemented(overload, "a plain tensor meets partitioned rows")
            locals_.append(arg)
        result = overload(x._local, dim, *locals_, **kwargs)
        return x if result is x._local else wrap(result, x.row_layout, x.partitioned_dim)

    RULES[overload] = run


def _rows_of_zeros(overload: OpOverload, x: Tensor, args: tuple[Any, ...]) -> PartitionedTensor:
    """Plain zeros of all rows, to which autograd adds the gradients of partitioned rows."""
    first = next(arg for arg in args if type(arg) is PartitionedTensor)
    local = local_rows_of_plain(overload, x, first.row_layout, first.partitioned_dim)
    return wrap(local, first.row_layout, first.partitioned_dim)


for _op in (
    *(aten.gather.default, aten.scatter_add.default, aten.scatter_add_.default),
    *(aten.scatter.src, aten.scatter.value, aten.scatter_.src, aten.scatter_.value),
    *(aten.scatter_reduce.two, aten.scatter_reduce_.two, aten.index_select.default),
    *(aten.index_add.default, aten.index_add_.default, aten.index_fill.int_Scalar),
):
    _register_along_columns(_op)


@function_rule(torch.gather, Tensor.gather)
def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Tensor:
    """As `torch.gather`; rows are gathered by an index that is equal along columns."""
    if sparse_grad:
        not_implemented("gather", "sparse_grad=True: gradients of partitioned rows are dense")
    dim = resolve_dim("gather", dim, input)
    if not isinstance(input, PartitionedTensor):
        if index.partitioned_dim != dim:
            not_implemented("gather", "the rows of a plain tensor meet partitioned ones")
        local = replicated(input, index.row_layout.group).gather(dim, index._local)
        return from_local(local, index.row_layout, index.partitioned_dim)
    if dim != input.partitioned_dim:
        with _DisableTorchFunction():
            return torch.gather(input, dim, index)
    ids = _ids_of(index, dim, "gather")
    if index.shape[:dim] + index.shape[dim + 1 :] != input.shape[:dim] + input.shape[dim + 1 :]:
        not_implemented("gather", "the index has other columns")
    return fetch(input, ids) if isinstance(ids, PartitionedTensor) else select_rows(input, ids)


def _ids_of(index: Tensor, dim: int, name: str) -> Tensor:
    """The row ids of an index that was expanded along all other dimensions."""
    local = index._local if isinstance(index, PartitionedTensor) else index
    for place in reversed(range(local.dim())):
        if place != dim:
            if local.stride(place) and local.shape[place] != 1:
                not_implemented(
                    name, "the index names other rows in each column; expand one column"
                )
            index = index.select(place, 0)
    return index


@function_rule(torch.scatter_add, Tensor.scatter_add)
def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """As `torch.scatter_add`; rows go to the user's rows or to places in a plain tensor."""
    dim = resolve_dim("scatter_add", dim, input)
    if not _scatters_rows(input, dim, index):
        with _DisableTorchFunction():
            return torch.scatter_add(input, dim, index, src)
    src = _source("scatter_add", dim, index, src)
    if isinstance(input, PartitionedTensor):
        ids = _ids_of(index, dim, "scatter_add")
        return input + _send(src, ids, input)
    local = torch.zeros_like(input).scatter_add(dim, index._local, src.to_local())
    result: Tensor = input + sum_over_ranks(local, index.row_layout.group)
    return result


@function_rule(Tensor.scatter_add_)
def scatter_add_(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """:func:`scatter_add` in place."""
    if not _scatters_rows(input, resolve_dim("scatter_add_", dim, input), index):
        with _DisableTorchFunction():
            return Tensor.scatter_add_(input, dim, index, src)
    return Tensor.copy_(input, scatter_add(input, dim, index, src))


@function_rule(torch.index_add, Tensor.index_add)
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """As `torch.index_add`."""
    dim = resolve_dim("index_add", dim, input)
    if not isinstance(index, PartitionedTensor):
        if isinstance(input, PartitionedTensor) and dim == input.partitioned_dim:
            rows = (*[slice(None)] * dim, index.reshape(-1))
            result: Tensor = input.clone()
            put(result, parse_index(rows, input.shape).advanced, source * alpha, True)  # type: ignore[arg-type]
            return result
        with _DisableTorchFunction():
            return torch.index_add(input, dim, index, source, alpha=alpha)
    source = _source("index_add", dim, index, source)
    if alpha != 1:
        source = source * alpha
    if isinstance(input, PartitionedTensor):
        return input + _send(source, index, input)
    local = torch.zeros_like(input).index_add(dim, index._local, source.to_local())
    total: Tensor = input + sum_over_ranks(local, index.row_layout.group)
    return total


@function_rule(Tensor.index_add_)
def index_add_(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """:func:`index_add` in place."""
    return Tensor.copy_(input, index_add(input, dim, index, source, alpha=alpha))


@function_rule(torch.scatter_reduce, Tensor.scatter_reduce)
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """As `torch.scatter_reduce` into a plain tensor, as pooling of graphs does."""
    dim = resolve_dim("scatter_reduce", dim, input)
    if not _scatters_rows(input, dim, index):
        with _DisableTorchFunction():
            return torch.scatter_reduce(input, dim, index, src, reduce, include_self=include_self)
    src = _source("scatter_reduce", dim, index, src)
    if isinstance(input, PartitionedTensor):
        if reduce == "sum" and include_self:
            return scatter_add(input, dim, index, src)
        not_implemented("scatter_reduce", f"values are reduced by {reduce} into partitioned rows")
    rows, places, group = src.to_local(), index._local, index.row_layout.group
    counts = torch.zeros_like(input).scatter_add(dim, places, torch.ones_like(rows))
    counts = sum_over_ranks(counts, group)
    base = input if include_self else torch.where(counts > 0, torch.zeros_like(input), input)
    if reduce in ("sum", "mean"):
        total = base + sum_over_ranks(torch.zeros_like(input).scatter_add(dim, places, rows), group)
        if reduce == "sum":
            return total
        counts = counts + 1 if include_self else counts.clamp(min=1)
        rounding = None if total.is_floating_point() or total.is_complex() else "floor"
        return torch.div(total, counts, rounding_mode=rounding)
    if reduce not in ("amax", "amin") or (include_self and input.requires_grad):
        not_implemented("scatter_reduce", f"values are reduced by {reduce}")
    return _extreme_by_group(input, dim, index, rows, counts, reduce, include_self)


def _extreme_by_group(
    input: Tensor,
    dim: int,
    index: PartitionedTensor,
    rows: Tensor,
    counts: Tensor,
    reduce: str,
    include_self: bool,
) -> Tensor:
    """The maximum or minimum of each group; ties share the gradient, as in torch."""
    places, group, op = index._local, index.row_layout.group, _REDUCE_OPS[reduce]
    with torch.no_grad():
        start = torch.full_like(input, worst_value(input.dtype, op))
        extremes = start.scatter_reduce(dim, places, rows, reduce)
        extremes = reductions_of(group).all_reduce(extremes, op)
        if include_self:
            extremes = (
                torch.maximum(extremes, input)
                if reduce == "amax"
                else torch.minimum(extremes, input)
            )
    result = torch.where(counts > 0, extremes, input)
    if not rows.requires_grad:
        return result
    with torch.no_grad():
        is_extreme = (rows == extremes.gather(dim, places)).to(rows.dtype)
        ties = torch.zeros_like(extremes).scatter_add(dim, places, is_extreme)
        if include_self:
            ties = ties + (extremes == input)
        share = is_extreme / sum_over_ranks(ties, group).gather(dim, places)
    shares = torch.where(is_extreme > 0, rows, 0) * share
    total = sum_over_ranks(torch.zeros_like(extremes).scatter_add(dim, places, shares), group)
    return result + (total - total.detach())


@function_rule(Tensor.scatter_reduce_)
def scatter_reduce_(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """:func:`scatter_reduce` in place."""
    before = input.clone()  # gradients read it again
    return Tensor.copy_(
        input, scatter_reduce(before, dim, index, src, reduce, include_self=include_self)
    )


def _scatters_rows(input: Any, dim: int, index: Any) -> bool:
    """Whether an index names rows for rows, rather than columns within each row."""
    return isinstance(index, PartitionedTensor) and index.partitioned_dim == dim


def _source(name: str, dim: int, index: PartitionedTensor, src: Any) -> PartitionedTensor:
    """The values for an index; plain ones that are equal in all rows become partitioned."""
    if isinstance(src, PartitionedTensor):
        if src.partitioned_dim != dim:
            not_implemented(name, "the values are not partitioned along the scattered dimension")
        require_same_rows(name, index.row_layout, src.row_layout)
        return src
    layout, from_end = index.row_layout, dim - src.dim()
    rows = local_rows_of_plain(name, src, layout, from_end)
    if src.requires_grad:
        rows = local_rows_of_plain(name, replicated(src, layout.group), layout, from_end)
    return from_local(rows, layout, dim)


def _send(src: Tensor, ids: Tensor, like: PartitionedTensor) -> Tensor:
    if like.partitioned_dim != 0 or src.shape[1:] != like.shape[1:]:
        not_implemented("scatter", "rows are not the first dimension, or columns differ")
    if not isinstance(ids, PartitionedTensor):
        assert isinstance(src, PartitionedTensor)
        ids = distribute(ids, src.row_layout)
    return NamedRows.of(like.row_layout, ids).add(src)


@function_rule(F.embedding)
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a plain table by partitioned ids, or of a partitioned table."""
    if max_norm is not None or scale_grad_by_freq:
        not_implemented("embedding", "max_norm or scale_grad_by_freq is given")
    if sparse:
        not_implemented("embedding", "sparse=True: gradients of partitioned rows are dense")
    if isinstance(weight, PartitionedTensor):
        if padding_idx is not None:
            not_implemented("embedding", "padding_idx is given for partitioned rows")
        return select_rows(weight, input)
    rows = replicated(weight, input.row_layout.group)
    return from_local(
        F.embedding(input._local, rows, padding_idx), input.row_layout, input.partitioned_dim
    )


@function_rule(F.one_hot)
def one_hot(tensor: PartitionedTensor, num_classes: int = -1) -> PartitionedTensor:
    """As `F.one_hot`; the number of classes is that of all rows."""
    if num_classes < 0:
        num_classes = int(tensor.max()) + 1
    local = F.one_hot(tensor._local, num_classes)
    return from_local(local, tensor.row_layout, tensor.partitioned_dim)
