"""Selected rows: by mask, by ids of the user's numbering, by ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.conversions import distribute, from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import function_rule


@function_rule(Tensor.__getitem__)
def getitem(x: Any, index: Any) -> Tensor:
    """Rows of the partitioned dimension, and columns as for plain tensors."""
    if not isinstance(x, PartitionedTensor):
        not_implemented("indexing", "a plain tensor is indexed by a partitioned one")
    parts = _expand_index(index, x)
    dim = x.partitioned_dim
    # Dimensions that indices before the partitioned one add or remove.
    place = consumed = 0
    while consumed < dim or (place < len(parts) and parts[place] is None):
        consumed += _dims_of(parts[place])
        place += 1
    rows = parts[place]
    if isinstance(rows, slice) and rows.indices(x.layout.size) == (0, x.layout.size, 1):
        rows = parts[place] = slice(None)
    if not _is_all(rows):
        selected = select_rows(x, rows)
        if isinstance(rows, int):
            parts = [*parts[:place], *parts[place + 1 :]]
        else:
            parts[place] = slice(None)
    else:
        selected = x
    if all(_is_all(part) for part in parts):
        return selected
    with torch._C.DisableTorchFunctionSubclass():
        return selected[tuple(parts)]


@function_rule(torch.index_select, Tensor.index_select)
def index_select(input: Any, dim: int, index: Tensor) -> Tensor:
    """Rows by ids, or columns."""
    if isinstance(input, PartitionedTensor) and dim % input._local.dim() == input.partitioned_dim:
        return select_rows(input, index)
    with torch._C.DisableTorchFunctionSubclass():
        result: Tensor = torch.index_select(input, dim, index)
    return result


def select_rows(x: PartitionedTensor, rows: Any) -> Tensor:
    """Returns rows of the partitioned dimension; plain for one row. Collective.

    Args:
        rows: a bool mask, partitioned as `x` or plain of all rows; plain ids equal on all ranks; a
            range; or one id.
    """
    if isinstance(rows, int):
        row = select_rows(x, torch.tensor([rows])).full_tensor()  # type: ignore[attr-defined]
        selected: Tensor = row.squeeze(x.partitioned_dim)
        return selected
    if isinstance(rows, slice) and rows.indices(x.layout.size) == (0, x.layout.size, 1):
        return x  # Such as the rows of destinations among those of sources, x[:num_nodes].
    return take(x, selection(x.layout, rows))


def selection(layout: RowLayout, rows: Any) -> RowLayout:
    """Returns the layout of selected rows: see :func:`select_rows`."""
    if isinstance(rows, slice):
        return layout.select_ids(torch.arange(*rows.indices(layout.size)))
    if isinstance(rows, (list, tuple, range)):
        rows = torch.tensor(rows)
    if isinstance(rows, PartitionedTensor):
        if rows._local.dtype != torch.bool or rows._local.dim() != 1:
            not_implemented("indexing", "rows are selected by partitioned ids")
        require_same_rows("indexing", layout, rows.layout)
        return layout.select_mask(rows._local)
    if not isinstance(rows, Tensor):
        raise TypeError(f"rows are selected by masks, ids and ranges, got {type(rows).__name__}")
    if rows.dtype == torch.bool:
        if rows.shape != (layout.size,):
            raise IndexError(
                f"the mask must have one element for each of {layout.size} rows, "
                f"got shape {tuple(rows.shape)}"
            )
        known = layout._known(rows)
        if known is not None:
            return known
        return layout._remember(rows, layout.select_mask(distribute(rows, layout)._local))
    return layout.select_ids(rows)


def take(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of `layout`, a selection of rows of `x`'s layout. Differentiable."""
    assert layout.parent_rows is not None
    result = x.to_local().index_select(x.partitioned_dim, layout.parent_rows)
    return from_local(result, layout, x.partitioned_dim)


def _expand_index(index: Any, x: PartitionedTensor) -> list[Any]:
    """One index for each dimension of `x`, and None for new dimensions."""
    parts = list(index) if isinstance(index, tuple) else [index]
    missing = x._local.dim() - sum(_dims_of(part) for part in parts if part is not Ellipsis)
    fill = [slice(None)] * missing
    for place, part in enumerate(parts):
        if part is Ellipsis:
            return [*parts[:place], *fill, *parts[place + 1 :]]
    return [*parts, *fill]


def _dims_of(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return part.dim()
    return 1


def _is_all(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)
