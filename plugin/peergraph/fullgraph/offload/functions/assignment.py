"""Rows that are written into offloaded tensors, or joined with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.gathering import on_device
from peergraph.fullgraph.offload.functions.recording import record, refuse
from peergraph.fullgraph.offload.functions.selection import (
    are_pairs,
    is_all_rows,
    local_mask,
    mask_of_all,
    place_of_rows,
    rows_of,
    rows_on_device,
)
from peergraph.fullgraph.offload.programs.selected_rows import Selection, spread_rows
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction
from peergraph.fullgraph.offload.tensor.offloaded_tensor import RULES, OffloadedTensor, make_shell
from peergraph.fullgraph.tensor.arguments import require_same_rows
from peergraph.fullgraph.tensor.conversions import distribute, from_local, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.selection import selection, take


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """Writes rows by mask, ids or range in place, or columns of all rows.

    The values of selected rows are on the device, and so they stay until the rows are computed.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(x, OffloadedTensor):
        # Rows of a tensor on the device, which are named, or have values, that are not computed.
        values = on_device(value) if isinstance(value, OffloadedTensor) else value
        x[tuple(map(rows_on_device, parts))] = values
        return
    place = place_of_rows(parts, x)
    if place is None or is_all_rows(parts[place], x):
        record(Tensor.__setitem__, (x, index, value), {})
        return
    if not x._content.is_storable:
        refuse("assignment", "rows are written into a view of which they are no rows")
    rows = rows_on_device(parts[place])
    if isinstance(rows, PartitionedTensor) and rows.dtype != torch.bool:
        refuse("assignment", "rows are written by partitioned ids")
    if isinstance(rows, int) and not isinstance(rows, bool):
        rows = torch.tensor([rows], device="cpu")
    chosen = selection(x.layout, rows)
    parts[place] = slice(None)
    pairs = are_pairs(parts, rows)
    if not all(isinstance(part, slice) and part == slice(None) for part in parts):
        # Columns of selected rows: the rows are read, changed, and written as a whole.
        written = rows_of(x, chosen).clone()
        parts[place] = mask_of_all(written) if pairs else slice(None)
        written[tuple(map(rows_on_device, parts))] = value
        value = written
    _write(x, chosen, value)


def index_copy_(input: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    """As `Tensor.index_copy_`: rows by ids, or columns."""
    setitem(input, (*[slice(None)] * (dim % input.dim()), index), source)
    return input


def index_copy(input: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    """As `torch.index_copy`."""
    return index_copy_(input.clone(), dim, index, source)


def cat(tensors: Sequence[Tensor], dim: int = 0, **kwargs: Any) -> Tensor:
    """As `torch.cat`. To be joined along the rows, offloaded tensors with one value a row are
    computed and moved to the device; wider ones raise NotImplementedError.
    """
    rows = [x for x in tensors if isinstance(x, OffloadedTensor)]
    along_rows = rows and dim % rows[0].dim() == rows[0].partitioned_dim
    if not along_rows or "out" in kwargs:
        joined: Tensor = record(torch.cat, (tensors, dim), kwargs)
        return joined
    if any(x.numel() > x.layout.size for x in rows):
        refuse("cat", "wide rows are joined with the rows of another tensor")
    return torch.cat([on_device(x) if isinstance(x, OffloadedTensor) else x for x in tensors], dim)


def set_data(x: OffloadedTensor, value: Tensor) -> None:
    """Refuses ``x.data = value``."""
    raise NotImplementedError(
        "x.data = values, of rows that are larger than GPU memory: make a new tensor, "
        "x = values.detach().requires_grad_()"
    )


RULES[Tensor.__setitem__] = setitem
RULES[Tensor.data.__set__] = set_data  # type: ignore[attr-defined]
RULES[Tensor.index_copy_] = index_copy_
RULES[Tensor.index_copy] = RULES[torch.index_copy] = index_copy
RULES[torch.cat] = RULES[torch.concat] = RULES[torch.concatenate] = cat


def _write(x: OffloadedTensor, chosen: RowLayout, value: Any) -> None:
    """Writes values of selected rows in place."""
    if isinstance(value, OffloadedTensor):
        refuse("assignment", "the values of selected rows are offloaded")
    if isinstance(value, Tensor) and not isinstance(value, PartitionedTensor):
        by_row = value.dim() == x.dim() and value.shape[0] != 1
        if by_row and value.shape[0] != chosen.size:
            raise ValueError(
                f"cannot assign shape {tuple(value.shape)} to {chosen.size} selected rows"
            )
        value = distribute(value.to(x.device), chosen) if by_row else value.to(x.device, x.dtype)
    if isinstance(value, PartitionedTensor):
        require_same_rows("assignment", chosen, value.layout)
        value = _spread(value.to(x.dtype).expand(-1, *x.shape[1:]), chosen, x)
    if chosen is x.layout:
        mask = torch.ones(x.layout.local_count, dtype=torch.bool, device=x.device)
    else:
        mask = local_mask(chosen)
    written = from_local(mask, x.layout).view([-1, *[1] * (x.dim() - 1)])
    x.copy_(torch.where(written, value, x))


def _spread(value: Tensor, chosen: RowLayout, x: OffloadedTensor) -> OffloadedTensor:
    """Returns selected rows among zeros in the place of other rows. Collective."""
    result: OffloadedTensor = SpreadRows.apply(value, chosen, x)
    # Gradients do not flow through the record.
    result._cell.identity = result if result.requires_grad else make_shell(result._content)
    return result


class SpreadRows(OffloadedFunction):
    """Rows of a selection on the device, among zeros in the place of other rows."""

    @staticmethod
    def forward(
        ctx: Any, value: PartitionedTensor, chosen: RowLayout, x: OffloadedTensor
    ) -> OffloadedTensor:
        space, local, rows = x._content.space, value._local, chosen.parent_rows
        ctx.chosen, ctx.layout = chosen, space.layout
        if chosen is space.layout:
            mask = torch.ones(len(local), dtype=torch.bool, device=local.device)
        else:
            assert rows is not None
            mask = local_mask(chosen)
            by_row = local.new_empty((len(mask), *local.shape[1:]))
            # Of rows that are named twice, one value stays, as in torch.
            local = by_row.index_copy_(0, rows, local)[mask]
        return spread_rows(local, Selection.of(space, space.layout.select_mask(mask)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        with torch.no_grad():
            if isinstance(grad, OffloadedTensor):
                found: Tensor = rows_of(grad, ctx.chosen)
            else:
                found = take(take_rows(grad, ctx.layout, 0), ctx.chosen)
            return found, None, None
