"""A sparse matrix by rows, as tensors; its transpose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import adjacency
from peergraph.aggregate.kernels.torch_operator import kernel

# What csrc/aggregate/neighbor_partition.cuh cuts long rows by.
_CHUNK = 256
_LONG_ROW = 512


@dataclass(frozen=True)
class CsrMatrix:
    """Edges by row: by destination, or by source in a transpose.

    Args:
        indptr: [rows + 1] int32 or int64.
        indices: [edges] int32 or int64 columns.
        edge_ids: [edges] int32 or int64, position -> row of edge tensors; None: the same.
        num_columns: bound of `indices`.
        max_chunks: bound of the pieces that a GPU cuts rows of more than 512 edges into.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    num_columns: int
    max_chunks: int

    @property
    def num_rows(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.indices.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, int, int]:
        """What all kernels take."""
        return self.indptr, self.indices, self.edge_ids, self.num_columns, self.max_chunks


def chunk_bound(num_edges: int) -> int:
    """What `max_chunks` can be at most, whatever the degrees."""
    return 0 if num_edges <= _LONG_ROW else num_edges // _CHUNK + num_edges // _LONG_ROW + 1


def count_chunks(indptr: Tensor) -> int:
    """`max_chunks` exactly. Synchronises; 0 on the CPU, which does not cut rows."""
    if indptr.device.type == "cpu":
        return 0
    degrees = indptr.diff()
    return int(((degrees + (_CHUNK - 1)) // _CHUNK * (degrees > _LONG_ROW)).sum())


def _fake_transpose(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        indptr.new_empty(num_columns + 1),
        torch.empty_like(indices),
        torch.empty_like(indices, dtype=indptr.dtype),
    )


@kernel("(Tensor indptr, Tensor indices, int num_columns) -> (Tensor, Tensor, Tensor)",
        _fake_transpose)  # fmt: skip
def transpose_rows(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """indptr, indices and positions of the transpose, the edges of a row in order of position."""
    if indices.device.type == "cpu":
        turned = _fake_transpose(indptr, indices, num_columns)
        given = adjacency(indptr.contiguous(), indices.contiguous(), None, num_columns)
        _C.transpose(given, *(tensor.data_ptr() for tensor in turned))
        return turned
    rows = row_of_edges(indptr, indices.numel(), indices.dtype)
    return group_by(indices, rows, num_columns, indptr.numel() - 1, indptr.dtype)


def row_of_edges(indptr: Tensor, num_edges: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """[edges] the row of each. Does not synchronise."""
    rows = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)


def group_by(
    keys: Tensor, values: Tensor, num_keys: int, num_values: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts edges (values[e], keys[e]) by key, stably.

    Returns:
        [num_keys + 1] where each key's edges begin; the values in their new order; the new
        positions' e. The first and the last of `dtype`, the values of their own.
    """
    if keys.device.type == "cpu":
        keys, values = keys.contiguous(), values.contiguous()
        indptr = torch.empty(num_keys + 1, dtype=torch.int64, device=keys.device)
        indices = torch.empty_like(values)
        order = torch.empty(keys.numel(), dtype=torch.int64, device=keys.device)
        _C.coo_to_csc(
            values.data_ptr(),
            keys.data_ptr(),
            keys.element_size(),
            keys.numel(),
            num_values,
            num_keys,
            indptr.data_ptr(),
            indices.data_ptr(),
            order.data_ptr(),
        )
        return indptr.to(dtype), indices, order.to(dtype)
    ordered, order = torch.sort(keys, stable=True)
    return begins(ordered, num_keys, dtype), values[order], order.to(dtype)


def counts_up(ids: Tensor) -> bool:
    """Whether contiguous int32 or int64 `ids` are 0, 1, 2, ... Synchronises."""
    if ids.device.type == "cpu":
        return _C.counts_up(ids.data_ptr(), ids.element_size(), ids.numel())
    return torch.equal(ids, torch.arange(ids.numel(), dtype=ids.dtype, device=ids.device))


def begins_if_sorted(keys: Tensor, num_keys: int) -> Tensor | None:
    """[num_keys + 1] where each key begins, of the keys' dtype; None if they are not sorted.

    Synchronises.

    Raises:
        IndexError: on the CPU, a key out of range.
    """
    if keys.device.type != "cpu" or torch.compiler.is_compiling():
        is_sorted = bool((keys[1:] >= keys[:-1]).all())
        return begins(keys.contiguous(), num_keys, keys.dtype) if is_sorted else None
    keys, indptr = keys.contiguous(), keys.new_empty(num_keys + 1)
    size = keys.element_size()
    found = _C.begins(keys.data_ptr(), size, keys.numel(), num_keys, indptr.data_ptr())
    return indptr if found else None


def begins(ordered: Tensor, num_keys: int, dtype: torch.dtype) -> Tensor:
    """[num_keys + 1] where each key begins in sorted keys."""
    narrow = dtype == torch.int32
    bounds = torch.arange(num_keys + 1, dtype=ordered.dtype, device=ordered.device)
    return torch.searchsorted(ordered, bounds, out_int32=narrow)
