"""Conversions between lists of edges (COO), offsets (CSR) and the transpose."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import CsrTensors
from peergraph.aggregate.kernels.torch_operator import kernel


def _fake_transpose(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        indptr.new_empty(num_columns + 1),
        torch.empty_like(indices),
        torch.empty_like(indices, dtype=indptr.dtype),
    )


@kernel(_fake_transpose)
def transpose_rows(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indptr, indices and positions of the transpose.

    The edges of a row are in the order of their positions in the given matrix.
    """
    if indices.device.type == "cpu":
        transpose = _fake_transpose(indptr, indices, num_columns)
        matrix = CsrTensors(indptr.contiguous(), indices.contiguous(), None, num_columns, 0)
        by_column, rows, positions = transpose
        _C.transpose(matrix.native(), indptr=by_column, indices=rows, positions=positions)
        return transpose
    rows = row_of_edges(indptr, indices.numel(), indices.dtype)
    return group_by(indices, rows, num_columns, indptr.numel() - 1, indptr.dtype)


def row_of_edges(indptr: Tensor, num_edges: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns the row of each edge, [edges]. Does not synchronise."""
    rows = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)


def group_by(
    keys: Tensor, values: Tensor, num_keys: int, num_values: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts edges (values[e], keys[e]) by key, stably.

    Returns:
        [num_keys + 1] offsets of each key's edges, of `dtype`; the values in their new order, of
        their own dtype; the old position of each edge, of `dtype`.
    """
    if keys.device.type == "cpu":
        keys, values = keys.contiguous(), values.contiguous()
        indptr = torch.empty(num_keys + 1, dtype=torch.int64, device=keys.device)
        indices = torch.empty_like(values)
        order = torch.empty(keys.numel(), dtype=torch.int64, device=keys.device)
        _C.coo_to_csc(values, keys, num_values, num_keys, indptr, indices, order)
        return indptr.to(dtype), indices, order.to(dtype)
    ordered, order = torch.sort(keys, stable=True)
    return indptr_from_sorted(ordered, num_keys, dtype), values[order], order.to(dtype)


def is_arange(ids: Tensor) -> bool:
    """Returns whether contiguous int32 or int64 `ids` are 0, 1, 2, ... Synchronises."""
    if ids.device.type == "cpu":
        return _C.is_arange(ids)
    return torch.equal(ids, torch.arange(ids.numel(), dtype=ids.dtype, device=ids.device))


def indptr_if_sorted(keys: Tensor, num_keys: int) -> Tensor | None:
    """Returns the offsets of each key, [num_keys + 1] of the keys' dtype; None for unsorted keys.

    Synchronises.

    Raises:
        IndexError: on the CPU, a key out of range.
    """
    if keys.device.type != "cpu" or torch.compiler.is_compiling():
        is_sorted = bool((keys[1:] >= keys[:-1]).all())
        return indptr_from_sorted(keys.contiguous(), num_keys, keys.dtype) if is_sorted else None
    keys, indptr = keys.contiguous(), keys.new_empty(num_keys + 1)
    return indptr if _C.indptr_from_sorted(keys, num_keys=num_keys, indptr=indptr) else None


def indptr_from_sorted(ordered: Tensor, num_keys: int, dtype: torch.dtype) -> Tensor:
    """Returns the offsets of each key in sorted keys, [num_keys + 1] of `dtype`."""
    narrow = dtype == torch.int32
    bounds = torch.arange(num_keys + 1, dtype=ordered.dtype, device=ordered.device)
    return torch.searchsorted(ordered, bounds, out_int32=narrow)
