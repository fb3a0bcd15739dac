"""Rows of several features as one operand of a kernel, which reads them where they are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, MESSAGES, launch_on, operands
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.memory import EncodedRows, TableRows
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.plain_tensor import dense

Rows = Tensor | EncodedRows | TableRows


def kind_of_rows(rows: Rows) -> Hashable:
    """Returns a key that rows have in common if one kernel can read all of them."""
    if isinstance(rows, EncodedRows):
        return rows.shape[1], rows.dtype, rows.codec, rows.scales is not None
    if isinstance(rows, TableRows):
        return rows.shape[1], rows.dtype, rows.row_codec, rows.has_scales_apart
    return rows.shape[1], rows.dtype, None, False


def sum_rows(
    out: Tensor, matrix: EdgeMatrix, features: Sequence[Rows], e: Tensor | None, mean: bool
) -> None:
    """Writes the sums or means of rows in each row of a matrix; values are rounded once.

    Args:
        out: [rows, columns] contiguous, of the features' dtype, or float16 or bfloat16 for float32.
        matrix: the edges. Its columns are the rows of all features, one after the other.
        features: of one kind.
        e: [edges, 1] weights of the features' dtype, or None for ones.
        mean: divide by the number of edges.
    """
    message, columns = "copy_u" if e is None else "mul", out.shape[1]
    features = [dense(rows) if isinstance(rows, Tensor) else rows for rows in features]
    alive: list[Tensor] = []  # until the kernel runs
    if len(features) == 1 and isinstance(features[0], Tensor):
        message_operands = operands(message, features[0], e, columns)
    else:
        message_operands = _by_address(features, message, e, columns, alive)
    _C.spmm(
        matrix.tensors.native(),
        message_operands,
        mean=mean,
        accumulate=False,
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
        dtype=DTYPES[features[0].dtype],
    )
    _count_reads(matrix, features)


def _by_address(
    features: Sequence[Rows], message: str, e: Tensor | None, columns: int, alive: list[Tensor]
) -> _C.Operands:
    """Returns the operands of messages whose rows are read by address; `alive` gets tensors that
    must outlive the call.
    """
    addresses, scales, leases, bits = [], [], [], 0
    for rows in features:
        if isinstance(rows, TableRows):
            addresses.append(rows.addresses())
            apart = rows.scale_addresses()
            leases += rows.leases
            bits |= rows.alignment_bits
        else:
            stored = rows.rows if isinstance(rows, EncodedRows) else rows
            addresses.append(_addresses(stored))
            apart = None
            if isinstance(rows, EncodedRows) and rows.scales is not None:
                apart = _addresses(rows.scales)
            bits |= stored.data_ptr() | _row_bytes(stored)
        if apart is not None:
            scales.append(apart)
    first = features[0]
    if isinstance(first, TableRows):
        codec = first.codec
    else:
        codec = first.codec.native if isinstance(first, EncodedRows) else None
    alive.append(torch.cat(addresses))
    if scales:
        alive.append(torch.cat(scales))
    return _C.Operands(
        message=MESSAGES[message],
        addresses=alive[0],
        address_bits=bits,
        e=e,
        columns=columns,
        e_columns=1,
        leases=leases,
        codec=codec,
        scale_addresses=alive[1] if scales else None,
    )


def _addresses(rows: Tensor) -> Tensor:
    """Returns the address of each row, int64."""
    first, step = rows.data_ptr(), max(1, _row_bytes(rows))
    return torch.arange(first, first + step * rows.shape[0], step, device=rows.device)


def _row_bytes(rows: Tensor) -> int:
    return rows.shape[1] * rows.element_size()


def _count_reads(matrix: EdgeMatrix, features: Sequence[Rows]) -> None:
    """Counts the rows of tables that were read, where tables count."""
    first = 0
    for rows in features:
        last = first + rows.shape[0]
        if isinstance(rows, TableRows) and rows.table.counter is not None:
            chosen = (matrix.indices >= first) & (matrix.indices < last)
            rows.count_reads(matrix.indices[chosen] - first)
        first = last
