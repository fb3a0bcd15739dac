"""Selected rows: by mask, by ids of the user's numbering, by ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import (
    not_implemented,
    require_same_rows,
    resolve_dim,
    rows_in_layout,
)
from peergraph.fullgraph.tensor.conversions import from_local, redistribute, replicated
from peergraph.fullgraph.tensor.index import first_place, parse_index
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, run_as_is
from peergraph.fullgraph.tensor.registry import METHODS, function_rule
from peergraph.fullgraph.tensor.row_copies import as_view
from peergraph.fullgraph.tensor.row_functions import NamedRows, selected_rows, take_selected
from peergraph.fullgraph.tensor.row_tensor import row_of
from peergraph.fullgraph.tensor.unrecorded_views import memory_of_view, view_without_gradients


def index_on_device(index: Any) -> Any:
    """Returns an index, or its parts, with rows on the device; those that are not computed are."""
    if isinstance(index, tuple):
        return tuple(map(index_on_device, index))
    if isinstance(index, PartitionedTensor) and index.is_offloaded:
        return METHODS["offloaded rows on device"](index)
    return index


@function_rule(Tensor.__getitem__, anywhere=True)
def getitem(x: Any, index: Any) -> Tensor:
    """Rows of the partitioned dimension, and columns, as of plain tensors.

    Selected rows of an offloaded tensor are on the device.
    """
    index = index_on_device(index)
    if not isinstance(x, PartitionedTensor):
        return _rows_of_plain(x, index)
    parsed = parse_index(index, x.shape)
    place = parsed.place_of(x.partitioned_dim)
    row = parsed.basic[place]
    if isinstance(row, int):
        columns = parsed.with_rows(place, None)
        others = (*columns[:place], *columns[place + 1 :])
        return select_row(x, row)[others]
    if x.is_offloaded and row != slice(None):
        x = METHODS["offloaded range of rows"](x, row)
        rest = parsed.with_rows(place, slice(None))
        return x if all(part == slice(None) for part in rest) else x[rest]  # type: ignore[no-any-return]
    view: Any = x
    if parsed.is_basic or any(part != slice(None) for part in parsed.basic):
        view = run_as_is(Tensor.__getitem__, x, parsed.basic)
    return view if parsed.is_basic else select(view, parsed.advanced)


def index_of_plain(advanced: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Returns masks and ids as an index of a plain tensor."""
    parts: list[Any] = []
    skipped = 0
    for part in advanced:
        if part is None and skipped:
            skipped -= 1
            continue
        parts.append(slice(None) if part is None else part)
        skipped = 0 if part is None or part.dtype != torch.bool else part.dim() - 1
    return tuple(parts) or (...,)


def select(x: PartitionedTensor, advanced: Sequence[Tensor | None]) -> Tensor:
    """Returns ``x[advanced]``: a copy. Differentiable; collective where rows are selected.

    Args:
        advanced: masks and ids by dimension, as of :func:`parse_index`.
    """
    dim = x.partitioned_dim
    [start, *more] = [place for place, part in enumerate(advanced) if part is not None]
    mask = advanced[start]
    assert mask is not None
    if not more and isinstance(mask, PartitionedTensor) and is_mask(mask, 2):
        end = start + mask.dim() - 1
        if not start <= dim <= end:
            not_implemented("indexing", "a partitioned mask is one of columns")
        merged: Any = x.flatten(start, end)
        flat_mask = mask.reshape(-1)
        parts = [*advanced[:start], flat_mask, *advanced[end + 1 :]]
        return select(merged, parts)
    advanced = ids_of_masks(advanced, dim)
    rows = advanced[dim]
    others = [part for place, part in enumerate(advanced) if place != dim and part is not None]
    if rows is None:
        if any(isinstance(part, PartitionedTensor) for part in others):
            not_implemented("indexing", "columns alone are indexed by a partitioned tensor")
        columns: Tensor = run_as_is(Tensor.__getitem__, x, index_of_plain(advanced))
        return columns
    if others or (rows.dim() > 1 and not isinstance(rows, PartitionedTensor)):
        return _select_together(x, advanced)
    return select_rows(x, rows)


def _are_ids(rows: Any) -> bool:
    return isinstance(rows, PartitionedTensor) and rows._local.dtype != torch.bool


def is_mask(part: Tensor | None, least_dims: int = 1) -> bool:
    return part is not None and part.dtype == torch.bool and part.dim() >= least_dims


def ids_of_masks(advanced: Sequence[Tensor | None], dim: int) -> list[Tensor | None]:
    """Returns an index without masks, but for one of rows alone: ids in their place.

    Raises:
        NotImplementedError: a partitioned mask is none of rows.
    """
    indices = list(advanced)
    for place, part in enumerate(advanced):
        if not is_mask(part):
            continue
        assert part is not None
        if place == dim and part.dim() == 1:
            continue
        if isinstance(part, PartitionedTensor):
            not_implemented("indexing", "a partitioned mask spans other dimensions than the rows")
        indices[place : place + part.dim()] = part.nonzero().unbind(1)
    return indices


def _select_together(x: PartitionedTensor, advanced: Sequence[Tensor | None]) -> Tensor:
    """What tables of ids name, or ids of rows and of columns together: ``x[rows, columns]``."""
    dim = x.partitioned_dim
    table = broadcast_ids(advanced)
    if table is not None:
        shape = next(part.shape for part in table if part is not None)
        if len(shape) > 1:  # the result is partitioned by the rows of the table
            flat = [None if part is None else part.reshape(-1) for part in table]
            elements: Any = select(x, flat)
            home = x.row_layout.blocks(shape[0]).repeat(shape[1:].numel())
            moved: Any = redistribute(elements, home)
            result: Tensor = moved.unflatten(first_place(advanced), shape)
            return result
        advanced = table
    rows = advanced[dim]
    assert rows is not None
    if rows.dim() > 1:
        not_implemented("indexing", "a partitioned table of ids and columns index together")
    selected = select_rows(x, rows)
    if (
        selected.row_layout is x.row_layout and x.ndim == 2 and not dim
    ):  # of all rows one element each
        column = advanced[1]
        if column is not None and column.ndim == 1:
            columns = _local_part(x.row_layout, column, x.row_layout.positions.device)
            columns = torch.where(columns < 0, columns + x.shape[1], columns)
            of_rows = from_local(columns.expand(x.row_layout.local_count), x.row_layout)
            return selected.gather(1, of_rows.unsqueeze(1)).squeeze(1)
    local = selected.to_local()
    places = torch.arange(local.shape[dim], device=local.device)
    index, result_dim = local_index(selected.row_layout, advanced, dim, places)
    return from_local(local[index], selected.row_layout, result_dim)


def broadcast_ids(advanced: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Returns plain ids of one shape; None if a mask or a partitioned tensor is among them."""
    parts = [part for part in advanced if part is not None]
    if any(isinstance(part, PartitionedTensor) or is_mask(part) for part in parts):
        return None
    shape = broadcast_shape(parts)
    return [None if part is None else part.expand(shape) for part in advanced]


def broadcast_shape(parts: Sequence[Tensor]) -> torch.Size:
    """Returns the shape of ids that index together. Raises IndexError where they do not fit."""
    try:
        return torch.broadcast_shapes(*(part.shape for part in parts))  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


def local_index(
    layout: RowLayout, advanced: Sequence[Tensor | None], dim: int, rows: Tensor
) -> tuple[tuple[Any, ...], int]:
    """Returns the index of local rows in the place of one of all rows.

    Args:
        layout: of the rows that are selected.
        advanced: ids by dimension; those of rows are not read.
        dim: the dimension of rows.
        rows: [layout.local_count] int64: the local rows that are selected.

    Returns:
        The index, and the dimension of the selected rows in the result.
    """
    local: list[Any] = []
    most = 1
    for place, part in enumerate(advanced):
        if place == dim:
            local.append(rows)
        elif part is None:
            local.append(slice(None))
        else:
            local.append(_local_part(layout, part, rows.device))
            most = max(most, part.dim())
    return tuple(local), first_place(advanced) + most - 1


def _local_part(layout: RowLayout, part: Tensor, device: torch.device) -> Tensor:
    """Returns this rank's part of ids of columns, of which the last dimension is that of rows."""
    if isinstance(part, PartitionedTensor):
        if part.partitioned_dim != part.dim() - 1:
            not_implemented("indexing", "the rows of ids that index together meet other dimensions")
        return rows_in_layout(
            "indexing", part.to_local(), part.partitioned_dim, part.row_layout, layout
        )
    part = part.to(device)
    count = part.shape[-1] if part.dim() else 1
    if count == layout.size:
        return part.index_select(-1, layout.positions) if part.dim() else part
    if count == 1:
        return part
    if layout.size == 1:
        not_implemented("indexing", "one row is indexed by several columns together")
    raise IndexError(
        "shape mismatch: indexing tensors could not be broadcast together with shapes "
        f"[{layout.size}], {list(part.shape)}"
    )


# PyG replaces torch.index_select by a function that calls the built-in one.
@function_rule(torch._C._VariableFunctions.index_select, Tensor.index_select, anywhere=True)
def index_select(input: Any, dim: int, index: Tensor) -> Tensor:
    """Rows by ids, or columns."""
    if not isinstance(input, PartitionedTensor):
        if isinstance(index, PartitionedTensor) and not index.is_offloaded:
            dim = resolve_dim("index_select", dim, input)
            return _rows_of_plain(input, (*[slice(None)] * dim, index))
    elif dim % input.ndim == input.partitioned_dim:
        return select_rows(input, index_on_device(index.view(1) if index.ndim == 0 else index))
    result: Tensor = run_as_is(torch.index_select, input, dim, index)
    return result


def select_row(x: PartitionedTensor, row: int) -> Tensor:
    """Returns one of the user's rows as a plain tensor that follows `x`. Collective.

    Args:
        row: not negative.
    """
    dim, token = x.partitioned_dim, x.change_token()
    strides = [stride for place, stride in enumerate(x.stride()) if place != dim]
    with memory_of_view(x):
        value = take(x, x.row_layout.select_range(slice(row, row + 1))).full_tensor()
        value = value.to(x.device).squeeze(dim)
        value = as_view(value, value.shape, value.shape, strides)
        if x.requires_grad and not torch.is_grad_enabled():
            value = view_without_gradients(value.detach())
    return row_of(x, (*[slice(None)] * dim, row), value, token)


def select_rows(x: PartitionedTensor, rows: Any) -> PartitionedTensor:
    """Returns rows of the partitioned dimension. Collective where the selection is new.

    Args:
        rows: a bool mask, partitioned as `x` or plain of all rows; plain ids equal on all ranks;
            partitioned ids; or a range.
    """
    if _are_ids(rows):
        return fetch(x, rows)
    if isinstance(rows, PartitionedTensor) and not x.row_layout.same_rows(rows.row_layout):
        # Of rows that a list of ids selected: x[permutation][mask].
        moved = in_layout(x, rows.row_layout)
        x = x if moved is None else moved
    layout = selection(x.row_layout, rows)
    if layout is x.row_layout and not isinstance(rows, slice):
        return x.clone()  # type: ignore[return-value]  # A list of all ids is no view, either.
    return take(x, layout)


def selection(layout: RowLayout, rows: Any) -> RowLayout:
    """Returns the layout of selected rows: see :func:`select_rows`."""
    if isinstance(rows, slice):
        return layout.select_range(rows)
    if isinstance(rows, PartitionedTensor):
        require_same_rows("indexing", layout, rows.row_layout)
        return layout.select_mask(rows._local)
    if not isinstance(rows, Tensor):
        rows = torch.as_tensor(rows)
    if rows.dtype not in (torch.bool, torch.uint8):
        return layout.select_ids(rows)
    if rows.shape != (layout.size,):
        raise IndexError(
            f"the mask must have one element for each of {layout.size} rows, "
            f"got shape {tuple(rows.shape)}"
        )
    return layout.select_plain_mask(rows.bool())


def take(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of `layout`, a selection of rows of `x`'s layout, on the device.

    Differentiable; collective where `x` is offloaded.
    """
    if x.is_offloaded:
        rows: PartitionedTensor = METHODS["offloaded selection"](x, layout)
        return rows
    if layout is x.row_layout:
        return x.view(x.shape)  # type: ignore[return-value]
    if not (x.requires_grad and torch.is_grad_enabled()):
        return selected_rows(x, layout)
    return take_selected(x, layout)


def fetch(x: PartitionedTensor, ids: PartitionedTensor) -> PartitionedTensor:
    """Returns the rows that partitioned ids name, in the layout of the ids. Collective.

    Args:
        x: partitioned along its first dimension.
        ids: integers, partitioned along their first dimension; the user's rows of `x`.
    """
    if x.partitioned_dim != 0 or ids.partitioned_dim != 0:
        not_implemented("indexing", "rows are not the first dimension")
    if x.is_offloaded:
        METHODS["refuse offloaded"]("indexing", "rows are selected by partitioned ids")
    return NamedRows.of(x.row_layout, ids).fetch(x)


def in_layout(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor | None:
    """Returns `x` with its rows on the ranks of `layout`, or None for other rows. Collective.

    Rows travel only where a list of ids selected them: ``x[permutation]`` as features of nodes.

    Args:
        x: partitioned along its first dimension.
        layout: the rows to return.
    """
    if x.partitioned_dim != 0 or layout.size != x.row_layout.size:
        return None
    if layout.same_rows(x.row_layout):
        return x
    if not x.row_layout.by_ids:
        return None
    return fetch(x, from_local(layout.positions, layout))


def _rows_of_plain(table: Tensor, index: Any) -> Tensor:
    """Elements of a plain tensor that partitioned ids name, as in ``weight[relation, ids]``."""
    basic, advanced = parse_index(index, table.shape)
    parts = [part for part in advanced if isinstance(part, PartitionedTensor)]
    layout = parts[0].row_layout
    if any(part.dtype == torch.bool for part in parts):
        raise ValueError(
            "indexing: a plain tensor of all rows is indexed by a partitioned mask: partition it "
            "with peergraph.fullgraph.like(mask, plain)"
        )
    advanced = ids_of_masks(advanced, -1)
    index, dim = local_index_of_plain(layout, advanced)
    local = replicated(table, layout.group)[basic][index]
    return from_local(local, layout, dim)


def local_index_of_plain(
    layout: RowLayout, advanced: Sequence[Tensor | None]
) -> tuple[tuple[Any, ...], int]:
    """Returns this rank's part of ids, some of them partitioned, that index a plain tensor.

    Returns:
        The index, and the partitioned dimension of the result.
    """
    parts = [part for part in advanced if part is not None]
    dims = {p.partitioned_dim - p.dim() for p in parts if isinstance(p, PartitionedTensor)}
    if len(dims) > 1:
        not_implemented("indexing", "the rows of ids that index together meet other dimensions")
    [from_end] = dims
    local: list[Any] = []
    for part in advanced:
        if part is None:
            local.append(slice(None))
        elif isinstance(part, PartitionedTensor):
            dim = part.partitioned_dim
            local.append(rows_in_layout("indexing", part._local, dim, part.row_layout, layout))
        elif part.dim() >= -from_end and part.shape[from_end] != 1:
            not_implemented("indexing", "plain ids of rows index together with partitioned ones")
        else:
            local.append(part.to(layout.group.device))
    most = len(broadcast_shape(parts))
    return tuple(local), first_place(advanced) + most + from_end


def _rows_before(input: Any, dim: int) -> tuple[Any, ...] | None:
    """Returns the index of the dimensions before those of rows; None where `dim` is another."""
    if not isinstance(input, PartitionedTensor) or not -input.ndim <= dim < input.ndim:
        return None
    dim %= input.ndim
    return (slice(None),) * dim if dim == input.partitioned_dim else None


def _by_rows(function: Any, by_rows: Any) -> Any:
    """Returns the rule of a function with an argument `dim`; rows are read one range at a time.

    Args:
        function: of torch.
        by_rows: called with the tensor, the index of the dimensions before the rows, and the other
            arguments, where `dim` is that of rows.
    """

    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        first = function is not torch.split and function is not Tensor.split
        first = first and function not in (torch.chunk, Tensor.chunk)
        options = list(args)
        if "dim" in kwargs:
            dim = kwargs["dim"]
        else:
            place = 0 if first else 1
            dim = options.pop(place) if len(options) > place else 0
        others = {name: value for name, value in kwargs.items() if name != "dim"}
        before = _rows_before(input, dim)
        if before is None:
            return run_as_is(function, input, *args, **kwargs)
        return by_rows(input, before, *options, **others)

    return run


def _select(x: PartitionedTensor, before: tuple[Any, ...], index: Any) -> Tensor:
    place = (*before, int(index))
    return x[place]


def _narrow(x: PartitionedTensor, before: tuple[Any, ...], start: Any, length: int) -> Tensor:
    size = x.row_layout.size
    start = int(start) + (size if start < 0 else 0)
    if not 0 <= start <= start + length <= size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size})")
    rows = (*before, slice(start, start + length))
    return x[rows]


def _split(
    x: PartitionedTensor, before: tuple[Any, ...], split_size_or_sections: Any = None, **kwargs: Any
) -> tuple[Tensor, ...]:
    size, sections = x.row_layout.size, split_size_or_sections
    sections = kwargs.get("split_size", sections)
    if isinstance(sections, int):
        if sections <= 0:
            not_implemented("split", "the parts have no rows")
        starts = range(0, max(size, 1), sections)
        sections = [min(sections, size - start) for start in starts]
    if sum(sections) != size:
        raise RuntimeError(f"split sizes must sum to {size}, got {list(sections)}")
    parts, start = [], 0
    for count in sections:
        rows = (*before, slice(start, start + count))
        parts.append(x[rows])
        start += count
    return tuple(parts)


def _chunk(x: PartitionedTensor, before: tuple[Any, ...], chunks: int) -> tuple[Tensor, ...]:
    return _split(x, before, max(1, -(-x.row_layout.size // chunks)))


def _unbind(x: PartitionedTensor, before: tuple[Any, ...]) -> tuple[Tensor, ...]:
    places = [(*before, row) for row in range(x.row_layout.size)]
    return tuple(x[place] for place in places)


for _rule, _functions in (
    (_select, (torch.select, Tensor.select)),
    (_narrow, (torch.narrow, Tensor.narrow)),
    (_split, (torch.split, Tensor.split)),
    (_chunk, (torch.chunk, Tensor.chunk)),
    (_unbind, (torch.unbind, Tensor.unbind)),
):
    for _function in _functions:
        function_rule(_function, anywhere=True)(_by_rows(_function, _rule))


@function_rule(torch.masked_select, Tensor.masked_select)
def masked_select(input: Any, mask: Any) -> Tensor:
    """As `torch.masked_select`."""
    if input.shape != mask.shape:
        input, mask = torch.broadcast_tensors(input, mask)  # type: ignore[no-untyped-call]
    selected: Tensor = input[mask]
    return selected
