"""Sums of neighbours and the destinations' own rows side by side, for one product of both.

One product reads and writes its result once, where the sum of two products reads it again. Rows of
a table, or of a wider dtype than the product, are copied anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, launch_on, operands
from peergraph.aggregate.kernels.spmm import spmm_into
from peergraph.aggregate.ops.spmm_table_rows import table_operands
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.memory import TableRows
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.plain_tensor import dense


def sums_and_self_rows(
    matrix: EdgeMatrix, x: Tensor | TableRows, mean: bool, self_x: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns [rows, columns + self columns] of `dtype`: sums of `x`, and the rows' own features.

    Values are rounded once, as they are written. Has no autograd.

    Args:
        matrix: the edges.
        x: [columns of the matrix, columns] of `dtype` or float32, or rows of a table that kernels
            can read.
        mean: means instead of sums.
        self_x: [rows, self columns] of `dtype` or float32; None: the first rows of `x`.
        dtype: that of `x`, or float16 or bfloat16.
    """
    count, width = matrix.num_destinations, x.shape[1]
    self_width = width if self_x is None else self_x.shape[1]
    out = torch.empty(count, width + self_width, dtype=dtype, device=x.device)
    if isinstance(x, Tensor):
        spmm_into(out, x, matrix.tensors, mean)
    else:
        sum_table_into(out, matrix, x, mean)
    own = self_x
    if own is None:
        own = x[:count] if isinstance(x, Tensor) else None
    if own is None:
        assert isinstance(x, TableRows)
        first = x.first(count)
        first.count_reads()
        own_operands, own_dtype = table_operands(first), x.dtype
    else:
        own = dense(own)
        own_operands, own_dtype = operands("copy_u", own, None, self_width), own.dtype
    _C.copy_rows(
        own_operands,
        dtype=DTYPES[own_dtype],
        first_column=width,
        out=out,
        launch=launch_on(out.device),
    )
    return out


def sum_table_as(dtype: torch.dtype, matrix: EdgeMatrix, x: TableRows, mean: bool) -> Tensor:
    """Returns sums or means of rows of a table, [rows, columns]; `dtype` as above."""
    out = torch.empty(matrix.num_destinations, x.shape[1], dtype=dtype, device=x.device)
    sum_table_into(out, matrix, x, mean)
    return out


def sum_table_into(out: Tensor, matrix: EdgeMatrix, x: TableRows, mean: bool) -> None:
    """Writes sums or means of rows of a table to the first columns of `out` [rows, ...]."""
    _C.spmm(
        matrix.tensors.native(),
        table_operands(x),
        mean=mean,
        accumulate=False,
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
        dtype=DTYPES[x.dtype],
    )
    x.count_reads(matrix.indices)
