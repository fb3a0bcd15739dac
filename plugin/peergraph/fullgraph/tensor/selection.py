"""Selected rows: by mask, by ids of the user's numbering, by ranges; and written rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.conversions import distribute, from_local, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import function_rule
from peergraph.fullgraph.tensor.row_functions import FetchRows, PutRows, TakeRows, selected_rows

_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


@function_rule(Tensor.__getitem__)
def getitem(x: Any, index: Any) -> Tensor:
    """Rows of the partitioned dimension, and columns as for plain tensors."""
    if not isinstance(x, PartitionedTensor):
        return _rows_of_plain(x, index)
    if _is_mask_of(index, x):
        return getitem(x.flatten(0, index.dim() - 1), index.reshape(-1))
    if _is_mask_of_rows(index, x):
        return select_rows(x, index)
    parts, place = split_index(index, x)
    rows = parts[place]
    if _is_all(rows):
        selected: Tensor = x
    elif isinstance(rows, int) and not isinstance(rows, bool):
        selected = select_row(x, rows)
        del parts[place]
    else:
        selected = select_rows(x, rows)
        parts[place : place + 1] = [slice(None)] * (selected.dim() - x._local.dim() + 1)
        columns = [p for p in parts if isinstance(p, PartitionedTensor)]
        if columns:  # x[torch.arange(n), labels]
            return _pick(selected, parts, place)
    if all(_is_all(part) for part in parts):
        return selected if selected is not x else x.view(x.shape)
    if any(isinstance(part, PartitionedTensor) for part in parts):
        not_implemented("indexing", "columns are indexed by a partitioned tensor")
    with _DisableTorchFunction():
        return selected[tuple(parts)]


# PyG replaces torch.index_select by a function that calls the built-in one.
@function_rule(torch._C._VariableFunctions.index_select, Tensor.index_select)
def index_select(input: Any, dim: int, index: Tensor) -> Tensor:
    """Rows by ids, or columns."""
    if not isinstance(input, PartitionedTensor):
        return _rows_of_plain(input, (*[slice(None)] * (dim % input.dim()), index))
    if dim % input._local.dim() == input.partitioned_dim:
        return select_rows(input, index)
    with _DisableTorchFunction():
        result: Tensor = torch.index_select(input, dim, index)
    return result


@function_rule(Tensor.__setitem__)
def setitem(x: Any, index: Any, value: Any) -> None:
    """Writes rows and columns in place."""
    if not isinstance(x, PartitionedTensor):
        not_implemented("assignment", "a plain tensor is indexed by or set to a partitioned one")
    if _is_mask_of(index, x) and index.dim() == x.dim():
        fill = value if isinstance(value, Tensor) else x.new_full((), value)
        if fill.dim():
            not_implemented("assignment", "a mask of elements is set to a tensor")
        x.copy_(torch.where(index, fill, x))
        return
    parts, place = split_index(index, x)
    rows = parts[place]
    if _is_all(rows):
        with _DisableTorchFunction():
            x[tuple(parts)] = value
        return
    columns = parts[:place] + parts[place + 1 :]
    if isinstance(rows, int) and not isinstance(rows, bool):
        rows = torch.tensor([rows], device="cpu")
    chosen = selection(x.layout, rows) if not _are_ids(rows) else None
    if chosen is None:
        not_implemented("assignment", "rows are written by partitioned ids")
    if not all(_is_all(part) for part in columns):
        # Columns of selected rows: the rows are read, changed, and written as a whole.
        written = take(x, chosen).clone()
        parts[place] = slice(None)
        with _DisableTorchFunction():
            written[tuple(parts)] = value
        value = written
    x.copy_(_with_rows(x, chosen, value))


@function_rule(torch.index_copy, Tensor.index_copy)
def index_copy(input: Any, dim: int, index: Tensor, source: Any) -> Tensor:
    """As `torch.index_copy`: rows by plain ids, or columns."""
    result: Tensor = input.clone()
    return index_copy_(result, dim, index, source)


@function_rule(Tensor.index_copy_)
def index_copy_(input: Any, dim: int, index: Tensor, source: Any) -> Tensor:
    """:func:`index_copy` in place."""
    setitem(input, (*[slice(None)] * (dim % input.dim()), index), source)
    result: Tensor = input
    return result


def _with_rows(x: PartitionedTensor, chosen: RowLayout, value: Any) -> Tensor:
    dim, dims = x.partitioned_dim, x._local.dim()
    if isinstance(value, PartitionedTensor):
        require_same_rows("assignment", chosen, value.layout)
        rows = value.to_local()
    elif isinstance(value, Tensor):
        if value.dim() >= dims - dim and value.shape[dim - dims] not in (1, chosen.size):
            raise ValueError(
                f"cannot assign shape {tuple(value.shape)} to {chosen.size} selected rows"
            )
        if value.dim() >= dims - dim and value.shape[dim - dims] == chosen.size > 1:
            rows = distribute(value, chosen, dim - dims).to_local()
        else:
            rows = replicated(value.to(x._local.device), chosen.group)
    else:
        rows = torch.as_tensor(value, device=x._local.device)
    shape = list(x._local.shape)
    shape[dim] = chosen.local_count
    rows = rows.to(x._local.dtype).expand(shape)
    if chosen is x.layout:
        return from_local(rows, chosen, dim)
    result: Tensor = PutRows.apply(x, from_local(rows, chosen, dim))  # type: ignore[no-untyped-call]
    return result


def select_row(x: PartitionedTensor, row: int) -> Tensor:
    """Returns one of the user's rows as a plain tensor. Collective."""
    size = x.layout.size
    if not -size <= row < size:
        raise IndexError(f"index {row} is out of bounds for {size} rows")
    row %= size
    return (
        take(x, x.layout.select_range(slice(row, row + 1))).full_tensor().squeeze(x.partitioned_dim)
    )


def select_rows(x: PartitionedTensor, rows: Any) -> PartitionedTensor:
    """Returns rows of the partitioned dimension. Collective where the selection is new.

    Args:
        rows: a bool mask, partitioned as `x` or plain of all rows; plain ids equal on all ranks;
            partitioned ids; or a range.
    """
    if _are_ids(rows):
        return fetch(x, rows)
    if isinstance(rows, PartitionedTensor) and not x.layout.same_rows(rows.layout):
        # Of rows that a list of ids selected: x[permutation][mask].
        moved = in_layout(x, rows.layout)
        x = x if moved is None else moved
    return take(x, selection(x.layout, rows))


def selection(layout: RowLayout, rows: Any) -> RowLayout:
    """Returns the layout of selected rows: see :func:`select_rows`."""
    if isinstance(rows, slice):
        return layout.select_range(rows)
    if isinstance(rows, PartitionedTensor):
        require_same_rows("indexing", layout, rows.layout)
        return layout.select_mask(rows._local)
    if not isinstance(rows, Tensor):
        rows = torch.as_tensor(rows)
    if rows.dtype not in (torch.bool, torch.uint8):
        if rows.dim() == 0:
            rows = rows.view(1)
        return layout.select_ids(rows)
    if rows.shape != (layout.size,):
        raise IndexError(
            f"the mask must have one element for each of {layout.size} rows, "
            f"got shape {tuple(rows.shape)}"
        )
    return layout.select_plain_mask(rows.bool())


def take(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of `layout`, a selection of rows of `x`'s layout. Differentiable."""
    if layout is x.layout:
        return x.view(x.shape)  # type: ignore[return-value]
    if not (x.requires_grad and torch.is_grad_enabled()):
        return selected_rows(x, layout)
    result: PartitionedTensor = TakeRows.apply(x, layout)  # type: ignore[no-untyped-call]
    return result


def fetch(x: PartitionedTensor, ids: PartitionedTensor) -> PartitionedTensor:
    """Returns the rows that partitioned ids name, in the layout of the ids. Collective.

    Args:
        x: partitioned along its first dimension.
        ids: integers, partitioned along their first dimension; the user's rows of `x`.
    """
    if x.partitioned_dim != 0 or ids.partitioned_dim != 0:
        not_implemented("indexing", "rows are not the first dimension")
    result: PartitionedTensor = FetchRows.apply(x, ids)  # type: ignore[no-untyped-call]
    return result


def in_layout(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor | None:
    """Returns `x` with its rows on the ranks of `layout`, or None for other rows. Collective.

    Rows travel only where a list of ids selected them: ``x[permutation]`` as features of nodes.

    Args:
        x: partitioned along its first dimension.
        layout: the rows to return.
    """
    if x.partitioned_dim != 0 or layout.size != x.layout.size:
        return None
    if layout.same_rows(x.layout):
        return x
    if not x.layout.by_ids:
        return None
    return fetch(x, from_local(layout.positions, layout))


def split_index(index: Any, x: PartitionedTensor) -> tuple[list[Any], int]:
    """One index for each dimension of `x`, None for new ones, and the place of the rows' index."""
    parts = list(index) if isinstance(index, tuple) else [index]
    missing = x._local.dim() - sum(_dims_of(part) for part in parts if part is not Ellipsis)
    if missing < 0:
        raise IndexError(f"too many indices for a tensor of {x._local.dim()} dimensions")
    fill = [slice(None)] * missing
    ellipsis = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts = [*parts[:ellipsis], *fill, *parts[ellipsis + 1 :]]
    place = consumed = 0
    while consumed < x.partitioned_dim or parts[place] is None:
        consumed += _dims_of(parts[place])
        place += 1
    if consumed > x.partitioned_dim:
        not_implemented("indexing", "a mask spans rows and columns")
    rows = parts[place]
    if isinstance(rows, Tensor) and rows.dim() > 1 and rows.dtype == torch.bool:
        not_implemented("indexing", "a mask spans rows and columns")
    if isinstance(rows, slice) and rows.indices(x.layout.size) == (0, x.layout.size, 1):
        parts[place] = slice(None)
    return parts, place


def _dims_of(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return part.dim()
    return 1


def _is_mask_of(index: Any, x: PartitionedTensor) -> bool:
    """Whether an index is a mask of several dimensions, those of rows among them."""
    return (
        isinstance(index, PartitionedTensor)
        and index._local.dtype == torch.bool
        and 1 < index._local.dim() <= x._local.dim()
        and index.partitioned_dim == x.partitioned_dim
    )


def _is_mask_of_rows(index: Any, x: PartitionedTensor) -> bool:
    return (
        isinstance(index, PartitionedTensor)
        and index._local.dtype == torch.bool
        and index._local.dim() == 1
        and x.partitioned_dim == 0
    )


def _is_all(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)


def _are_ids(rows: Any) -> bool:
    return isinstance(rows, PartitionedTensor) and rows._local.dtype != torch.bool


def _rows_of_plain(table: Tensor, index: Any) -> Tensor:
    """Rows of a plain tensor that partitioned ids name, as in ``weight[relation, ids]``."""
    parts = list(index) if isinstance(index, tuple) else [index]
    numbers = [type(part) is int for part in parts]
    if any(numbers):
        table = table[
            tuple(
                part if is_number else slice(None)
                for part, is_number in zip(parts, numbers, strict=True)
            )
        ]
        parts = [part for part in parts if type(part) is not int]
    ids = [part for part in parts if isinstance(part, PartitionedTensor)]
    if len(ids) != 1 or not all(_is_all(p) for p in parts if not isinstance(p, PartitionedTensor)):
        not_implemented("indexing", "a plain tensor is indexed by several tensors")
    place = next(i for i, part in enumerate(parts) if part is ids[0])
    if not _are_ids(ids[0]):
        raise ValueError(
            "indexing: a plain tensor of all rows is indexed by a partitioned mask: partition it "
            "with peergraph.fullgraph.like(mask, plain)"
        )
    parts[place] = ids[0]._local
    local = replicated(table, ids[0].layout.group)[tuple(parts)]
    return from_local(local, ids[0].layout, place + ids[0].partitioned_dim)


def _pick(rows: PartitionedTensor, parts: list[Any], place: int) -> Tensor:
    """One element of each row, named by a column for each row."""
    column = parts[place + 1] if len(parts) > place + 1 else None
    others = [p for i, p in enumerate(parts) if i not in (place, place + 1)]
    if place or not isinstance(column, PartitionedTensor) or not all(map(_is_all, others)):
        not_implemented("indexing", "several tensors index other dimensions than the first two")
    require_same_rows("indexing", rows.layout, column.layout)
    local = rows.to_local()
    picked = local[torch.arange(local.shape[0], device=local.device), column._local]
    return from_local(picked, rows.layout, 0)
