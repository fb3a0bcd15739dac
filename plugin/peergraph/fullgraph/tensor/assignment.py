"""Written rows: by mask, by ids of the user's numbering, by ranges, and pairs of row and column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.local_operands import sum_over_ranks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import not_implemented, resolve_dim
from peergraph.fullgraph.tensor.conversions import distribute, from_local, redistribute, replicated
from peergraph.fullgraph.tensor.index import first_place, parse_index
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import METHODS, function_rule
from peergraph.fullgraph.tensor.selection import (
    broadcast_ids,
    broadcast_shape,
    ids_of_masks,
    index_on_device,
    is_mask,
    local_index,
    local_index_of_plain,
    selection,
)

_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


@function_rule(Tensor.__setitem__, anywhere=True)
def setitem(x: Any, index: Any, value: Any) -> None:
    """Writes rows and columns in place."""
    if isinstance(x, PartitionedTensor) and x.is_offloaded:
        METHODS["offloaded assignment"](x, index, value)
        return
    index, value = index_on_device(index), _on_device(value)
    if not isinstance(x, PartitionedTensor):
        not_implemented("assignment", "a plain tensor is indexed by or set to a partitioned one")
    parsed = parse_index(index, x.shape)
    place = parsed.place_of(x.partitioned_dim)
    row = parsed.basic[place]
    if isinstance(row, int):  # a range of one row
        columns = parsed.with_rows(place, 0)
        with _DisableTorchFunction():
            one_row = (*[slice(None)] * x.partitioned_dim, slice(row, row + 1))
            x = x[one_row]
        if not parsed.is_basic:
            ids = torch.zeros(1, dtype=torch.int64, device="cpu")
            parsed = parse_index((*columns[:place], ids, *columns[place + 1 :]), x.shape)
        else:
            with _DisableTorchFunction():
                all_rows = (*columns[:place], slice(None), *columns[place + 1 :])
                x = x[all_rows]
            after = x.ndim - x.partitioned_dim - 1
            if isinstance(value, Tensor) and value.ndim > after:
                value = value.unsqueeze(value.ndim - after)
            _fill(x, value)
            return
    with _DisableTorchFunction():
        view: Any = x[parsed.basic]
    if parsed.is_basic:
        _fill(view, value)
    else:
        put(view, parsed.advanced, value)


def _on_device(value: Any) -> Any:
    """Returns values with rows on the device. Differentiable."""
    if isinstance(value, PartitionedTensor) and value.is_offloaded:
        return METHODS["offloaded values on device"](value)
    return value


def _fill(x: PartitionedTensor, value: Any) -> None:
    """Writes a value that broadcasts to all of `x`."""
    if not isinstance(value, Tensor):
        x.fill_(value)
        return
    while value.ndim > x.ndim and value.shape[0] == 1:
        value = value[0]
    if not isinstance(value, PartitionedTensor):
        value = values_for_rows(value, x.row_layout, x.partitioned_dim - x.ndim)
    x.copy_(value)


def values_for_rows(value: Tensor, layout: RowLayout, from_end: int) -> Tensor:
    """Returns a plain value with this rank's rows, where it has some for each row.

    Args:
        value: is written to rows.
        layout: of the rows.
        from_end: their dimension in the result of the same index, counted from the end.
    """
    if value.ndim >= -from_end and value.shape[from_end] != 1:
        if value.shape[from_end] != layout.size:
            raise ValueError(
                f"cannot assign shape {tuple(value.shape)} to {layout.size} selected rows"
            )
        return distribute(value, layout, value.ndim + from_end)
    return value


def put(
    x: PartitionedTensor, advanced: Sequence[Tensor | None], value: Any, accumulate: bool = False
) -> None:
    """Writes ``x[advanced] = value``, or adds the value there. Differentiable; collective.

    Args:
        advanced: masks and ids by dimension, as of :func:`parse_index`.
        value: a number, or a tensor that broadcasts to ``x[advanced]``.
        accumulate: whether values are added.
    """
    dim = x.partitioned_dim
    [start, *more] = [place for place, part in enumerate(advanced) if part is not None]
    mask = advanced[start]
    if not more and isinstance(mask, PartitionedTensor) and is_mask(mask, 2):
        put_at_elements(x, mask, start, value, accumulate)
        return
    advanced = ids_of_masks(advanced, dim)
    rows = advanced[dim]
    if rows is None:
        if any(isinstance(part, PartitionedTensor) for part in advanced):
            not_implemented("assignment", "columns alone are indexed by a partitioned tensor")
        value = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=x.dtype)
        with _DisableTorchFunction():
            torch.ops.aten.index_put_(x, list(advanced), value.to(x.device, x.dtype), accumulate)
        return
    table = broadcast_ids(advanced)
    if table is not None:
        shape = next(part.shape for part in table if part is not None)
        if len(shape) > 1 and isinstance(value, Tensor):
            value = _flattened(value, x.ndim, advanced, shape)
        advanced = [None if part is None else part.reshape(-1) for part in table]
        rows = advanced[dim]
    assert rows is not None
    if isinstance(rows, PartitionedTensor) and rows.dtype != torch.bool:
        not_implemented("assignment", "rows are written by partitioned ids")
    layout = selection(x.row_layout, rows)
    local_rows = layout.parent_rows
    if layout is x.row_layout:
        local_rows = torch.arange(layout.local_count, device=x._local.device)
    assert local_rows is not None
    index, place = local_index(layout, advanced, dim, local_rows)
    others = sum(part is not None for part in advanced)
    dims = x.ndim - others + max(part.ndim for part in index if isinstance(part, Tensor))
    local = x.to_local().clone()
    values = _local_values(value, layout, place - dims, local)
    written = [part if isinstance(part, Tensor) else None for part in index]
    torch.ops.aten.index_put_(local, written, values, accumulate)
    x.copy_(from_local(local, x.row_layout, dim))


def put_at_elements(
    x: PartitionedTensor, mask: PartitionedTensor, start: int, value: Any, accumulate: bool
) -> None:
    """Writes where a partitioned mask of several dimensions is true."""
    if isinstance(value, Tensor) and value.ndim:
        if value.numel() != 1:
            not_implemented("assignment", "a mask of elements is set to a tensor")
        value = value.reshape(())
    if start:
        not_implemented("assignment", "a mask of elements spans the last dimensions")
    mask = mask.view([*mask.shape, *[1] * (x.ndim - mask.ndim)])  # type: ignore[assignment]
    fill = value if isinstance(value, Tensor) else x.new_full((), value)
    x.copy_(torch.where(mask, x + fill if accumulate else fill.to(x.dtype), x))


def _flattened(
    value: Tensor, dims: int, advanced: Sequence[Tensor | None], shape: torch.Size
) -> Tensor:
    """Returns values for a table of ids as those for a list of them."""
    count = sum(part is not None for part in advanced)
    after = dims - count - first_place(advanced)
    if value.ndim <= after:
        return value
    if isinstance(value, PartitionedTensor):
        not_implemented("assignment", "the values for a table of ids are partitioned")
    rest = value.shape[value.ndim - after :]
    value = value.expand(*value.shape[: max(0, value.ndim - after - len(shape))], *shape, *rest)
    start = value.ndim - after - len(shape)
    return value.flatten(start, start + len(shape) - 1)


def _local_values(value: Any, layout: RowLayout, from_end: int, local: Tensor) -> Tensor:
    """Returns the values for this rank's selected rows.

    Args:
        value: a number or a tensor.
        layout: of the selected rows.
        from_end: the dimension of rows in the result of the same index, counted from the end.
        local: what is written into.
    """
    if not isinstance(value, Tensor):
        return torch.as_tensor(value, dtype=local.dtype, device=local.device)
    if not isinstance(value, PartitionedTensor):
        value = values_for_rows(value, layout, from_end)
    if not isinstance(value, PartitionedTensor):
        return replicated(value.to(local.device, local.dtype), layout.group)
    if value.partitioned_dim - value.ndim != from_end:
        not_implemented("assignment", "the rows of the values meet other dimensions")
    if value.row_layout is not layout:
        value = redistribute(value, layout)
    rows: Tensor = value.to_local().to(local.dtype)
    return rows


@function_rule(Tensor.index_put_, anywhere=True)
def index_put_(input: Any, indices: Sequence[Tensor], values: Any, accumulate: bool = False) -> Any:
    """As `Tensor.index_put_`; partitioned ids may count in a plain tensor."""
    if isinstance(input, PartitionedTensor) and input.is_offloaded:
        METHODS["offloaded assignment"](input, as_lists(indices), values, accumulate)
        return input
    indices, values = index_on_device(tuple(indices)), _on_device(values)
    if isinstance(input, PartitionedTensor):
        _, advanced = parse_index(as_lists(indices), input.shape)
        put(input, advanced, values, accumulate)
        return input
    if not accumulate:
        not_implemented(
            "index_put_", "a plain tensor is set at partitioned ids; accumulate=True adds there"
        )
    with torch.no_grad() if not _need_gradients(input, values) else torch.enable_grad():
        input += _counted(input, indices, values)
    return input


def as_lists(indices: Sequence[Tensor]) -> tuple[Any, ...]:
    """Returns the indices of ``index_put_`` with ids that have dimensions: one id without is no
    number, which would remove the dimension, as values meet it.
    """
    masks = torch.bool, torch.uint8
    return tuple(
        part.reshape(1)
        if isinstance(part, Tensor) and not part.ndim and part.dtype not in masks
        else part
        for part in indices
    )


def _need_gradients(*tensors: Any) -> bool:
    any_gradient = any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)
    return any_gradient and torch.is_grad_enabled()


def _counted(table: Tensor, indices: Sequence[Tensor], values: Any) -> Tensor:
    """Returns values of all ranks, added at partitioned ids to zeros as a plain table."""
    _, advanced = parse_index(as_lists(indices), table.shape)
    advanced = ids_of_masks(advanced, -1)
    tensors = [*advanced, values]
    first = next(part for part in tensors if isinstance(part, PartitionedTensor))
    parts = [part for part in advanced if part is not None]
    if not any(isinstance(part, PartitionedTensor) for part in parts):
        not_implemented("index_put_", "partitioned values are put at plain ids")
    layout = first.row_layout
    index, dim = local_index_of_plain(layout, advanced)
    dims = table.ndim - len(parts) + len(broadcast_shape(parts))
    local = torch.zeros_like(table, device=layout.group.device)
    spread = _local_values(values, layout, dim - dims, local)
    written = [part if isinstance(part, Tensor) else None for part in index]
    total = torch.ops.aten.index_put(local, written, spread, True)
    return sum_over_ranks(total, first.row_layout.group).to(table.device)


@function_rule(torch.index_put, Tensor.index_put, anywhere=True)
def index_put(input: Any, indices: Sequence[Tensor], values: Any, accumulate: bool = False) -> Any:
    """:func:`index_put_` of a copy."""
    return input.clone().index_put_(indices, values, accumulate)


@function_rule(Tensor.index_copy_, anywhere=True)
def index_copy_(input: Any, dim: int, index: Tensor, source: Any) -> Tensor:
    """As `Tensor.index_copy_`: rows by plain ids, or columns."""
    rows_or_columns = (*[slice(None)] * resolve_dim("index_copy_", dim, input), index.reshape(-1))
    input[rows_or_columns] = source
    result: Tensor = input
    return result


@function_rule(torch.index_copy, Tensor.index_copy, anywhere=True)
def index_copy(input: Any, dim: int, index: Tensor, source: Any) -> Tensor:
    """:func:`index_copy_` of a copy."""
    copy = input.clone(memory_format=torch.contiguous_format)
    return index_copy_(copy, dim, index, source)


@function_rule(Tensor.index_fill_, anywhere=True)
def index_fill_(input: Any, dim: int, index: Tensor, value: Any) -> Tensor:
    """As `Tensor.index_fill_`: rows by plain ids, or columns."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(f"index_fill_: value must have no dimensions, not {value.ndim}")
        if value.requires_grad:
            index = torch.unique(index)  # the gradient of the value counts a row once
    return index_copy_(input, dim, index, value)


@function_rule(torch.index_fill, Tensor.index_fill, anywhere=True)
def index_fill(input: Any, dim: int, index: Tensor, value: Any) -> Tensor:
    """:func:`index_fill_` of a copy."""
    return index_fill_(input.clone(), dim, index, value)
