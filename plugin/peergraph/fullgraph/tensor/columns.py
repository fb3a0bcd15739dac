"""Columns that plain masks and ids name, and values put there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import rule

aten = torch.ops.aten
Indices = Sequence[Tensor | None]


def _result_dims(x: Any, indices: Indices) -> tuple[int, int]:
    """The partitioned dimension and the number of dimensions of `x[indices]`."""
    if type(x) is not PartitionedTensor or any(type(i) is PartitionedTensor for i in indices):
        not_implemented("indexing", "columns are indexed by a partitioned tensor")
    indexed: list[int] = []
    dim = new_dims = 0
    for index in indices:
        if index is None:
            dim += 1
            continue
        is_mask = index.dtype in (torch.bool, torch.uint8)
        consumed = index.dim() if is_mask else 1
        indexed += range(dim, dim + consumed)
        new_dims = max(new_dims, 1 if is_mask else index.dim())
        dim += consumed
    rows = x.partitioned_dim
    if rows in indexed:
        not_implemented("indexing", "rows are indexed together with columns")
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    before = sum(place < rows for place in indexed)
    # Indexed dimensions that are not adjacent go to the front.
    moved = rows - before + (new_dims if before or not adjacent else 0)
    return moved, x._local.dim() - len(indexed) + new_dims


@rule(aten.index.Tensor)
def index(x: Any, indices: Indices) -> PartitionedTensor:
    """Columns; rows are selected above autograd."""
    dim, _ = _result_dims(x, indices)
    return wrap(aten.index.Tensor(x._local, indices), x.row_layout, dim)


@rule(aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(
    x: Any, indices: Indices, values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> PartitionedTensor:
    """Values put into columns, in place."""
    aten.index_put_.default(x._local, indices, _values(x, indices, values), accumulate)
    assert isinstance(x, PartitionedTensor)
    return x


@rule(aten.index_put.default)
def index_put(
    x: Any, indices: Indices, values: Tensor, accumulate: bool = False
) -> PartitionedTensor:
    """Values put into columns of a copy."""
    local_values = _values(x, indices, values)
    local = aten.index_put.default(x._local, indices, local_values, accumulate)
    return wrap(local, x.row_layout, x.partitioned_dim)


def _values(x: Any, indices: Indices, values: Tensor) -> Tensor:
    dim, dims = _result_dims(x, indices)
    if type(values) is not PartitionedTensor:
        return local_rows_of_plain("assignment", values, x.row_layout, dim - dims)
    require_same_rows("assignment", x.row_layout, values.row_layout)
    if values.partitioned_dim - values._local.dim() != dim - dims:
        not_implemented("assignment", "the rows of the values meet other dimensions")
    return values._local
