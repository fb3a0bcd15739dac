"""A plain row that is expanded to all rows: each chunk has its own part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import from_local, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import chunk_rule
from peergraph.fullgraph.tensor.uncompiled import Uncompiled


def expanded_dim(tensor: Any, like: OffloadedTensor) -> int | None:
    """Returns the dimension along which a plain tensor is one row, expanded to those of `like`."""
    if not isinstance(tensor, Tensor) or isinstance(tensor, (PartitionedTensor, Uncompiled)):
        return None
    rows = like._content.row_layout.size
    if rows < 2 or rows not in tensor.shape or tensor.layout != torch.strided:
        return None
    steps = list(zip(tensor.shape, tensor.stride(), strict=True))
    aligned = tensor.ndim - like.ndim + like.partitioned_dim
    if aligned >= 0 and steps[aligned][0] == rows:  # as many columns are no rows
        return aligned if steps[aligned][1] == 0 else None
    return next((dim for dim, step in enumerate(steps) if step == (rows, 0)), None)


def expanded_rows(row: Tensor, like: PartitionedTensor, dim: int) -> PartitionedTensor:
    """Returns a plain row once for each row of a partitioned tensor.

    Args:
        row: with one element along `dim`.
        like: has the rows.
        dim: of the result, where the rows are.
    """
    entered = replicated(row, like.row_layout.group)
    return from_local(_repeated(entered, like.row_layout, dim), like.row_layout, dim)


@chunk_rule(expanded_rows)
def _expanded_chunk(row: Any, like: Any, dim: int) -> ChunkRows | None:
    return ChunkRows(_repeated(row, like.row_layout, dim), like.row_layout, dim)


def _repeated(row: Tensor, layout: RowLayout, dim: int) -> Tensor:
    return row.expand(*row.shape[:dim], layout.local_count, *row.shape[dim + 1 :])
