"""Sums of messages as operators on tensors: two dimensions, no autograd, nothing checked.

`x` has the features of the columns (sources), `e` those of the edges, or of groups of columns of
`x`: [edges, divisor of the columns]. indptr, indices, edge_ids, num_columns and max_chunks are
those of :class:`peergraph.aggregate.sparse.csr.CsrMatrix`.
"""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    DTYPES,
    ROWS,
    address,
    adjacency,
    dense,
    operand_of,
    operands,
    place,
    sum_dtype,
)
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.allocate import Buffers


def _fake_spmm(
    x: Tensor | None,
    e: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    mean: bool,
) -> Tensor:
    operand = operand_of(x, e)
    return operand.new_empty(indptr.shape[0] - 1, operand.shape[1])


@kernel(f"(Tensor? x, Tensor? e, {ROWS}, str message, bool mean) -> Tensor", _fake_spmm)
def spmm(
    x: Tensor | None,
    e: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    mean: bool,
) -> Tensor:
    """Sum or mean of the messages in each row, [rows, columns]."""
    x, e = dense(x), dense(e)
    operand = operand_of(x, e)
    out = operand.new_empty(indptr.numel() - 1, operand.shape[1])
    _C.spmm(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        of=operands(message, x, e, out.shape[1], 1 if e is None else e.shape[1]),
        dtype=DTYPES[out.dtype],
        mean=mean,
        out=out.data_ptr(),
        max_chunks=max_chunks,
        allocate=Buffers(out.device),
        **place(out.device),
    )
    return out


def _fake_spread(
    x: Tensor | None,
    e: Tensor | None,
    counts: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
) -> Tensor:
    operand = operand_of(x, e)
    return operand.new_empty(num_columns, operand.shape[1])


@kernel(f"(Tensor? x, Tensor? e, Tensor? counts, {ROWS}, str message) -> Tensor", _fake_spread)
def spread(
    x: Tensor | None,
    e: Tensor | None,
    counts: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
) -> Tensor:
    """Sum of messages from rows (`x` is by row) to columns, [num_columns, columns]; by atomics.

    `counts` [num_columns] int32: where one is 1, the only message is stored without an atomic.
    """
    operand = operand_of(x, e)
    out = operand.new_zeros(num_columns, operand.shape[1], dtype=sum_dtype(operand.dtype))
    spread_onto(out, x, e, counts, indptr, indices, edge_ids, num_columns, max_chunks, message)
    return out.to(operand.dtype)


def spread_onto(
    out: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    counts: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
) -> None:
    """Adds to `out` [num_columns, columns] of the sums' dtype; no operator.

    `counts` as for :func:`spread`, and only where `out` is zero.
    """
    x, e = dense(x), dense(e)
    operand = operand_of(x, e)
    _C.spread(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        of=operands(message, x, e, out.shape[1], 1 if e is None else e.shape[1]),
        dtype=DTYPES[operand.dtype],
        counts=address(counts),
        out=out.data_ptr(),
        max_chunks=max_chunks,
        allocate=Buffers(out.device),
        **place(out.device),
    )
