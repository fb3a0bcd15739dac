"""g-SpMM that reads rows of a table by address, without a gather."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, MESSAGES, launch_on
from peergraph.aggregate.ops.operands import check_operand, columns, flat, is_prefix, runs_plainly
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.memory import TableRows
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.plain_tensor import dense

_MESSAGES = ("copy_u", "mul")


def reduce_table(
    matrix: EdgeMatrix, message: str, reduce: str, x: TableRows, e: Tensor | None
) -> Tensor | None:
    """Returns the result of g_spmm for gathered rows, or None.

    Narrow rows are widened while they are read. Their sums are rounded as those of gathered rows,
    and on a GPU added in another order; other rows are summed in the same order.

    None means that rows must be gathered: for other messages than ``copy_u`` and ``mul``, for
    gradients of `e`, under autocast and torch.compile, and with rows on disk beside a GPU.

    Raises:
        ValueError, TypeError: as g_spmm.
    """
    if x.device != matrix.device:
        raise ValueError(f"x must be on {matrix.device} as the structure, got {x.device}")
    if x.shape[0] != matrix.num_sources:
        raise ValueError(f"x must have {matrix.num_sources} rows (sources), got {list(x.shape)}")
    if not _can_read(message, x, e):
        return None
    if e is not None:
        check_operand("e", e, matrix.device, matrix.num_edges, "edges")
        if e.dtype != x.dtype or not is_prefix(tuple(e.shape[1:]), x.shape[1:]):
            return None
        e = dense(flat(e))
    width = columns(x.shape[1:])
    if width == 0 or (e is not None and e.shape[1] == 0):
        return None
    out = torch.empty(matrix.num_destinations, width, dtype=x.dtype, device=x.device)
    operands = table_operands(x, e, message)
    native, launch, allocate = matrix.tensors.native(), launch_on(out.device), Buffers(out.device)
    if reduce in ("max", "min"):
        _C.spmm_minmax(
            native,
            operands,
            minimum=reduce == "min",
            out=out,
            arg=torch.empty_like(out, dtype=matrix.indptr.dtype),
            launch=launch,
            allocate=allocate,
        )
    else:
        _C.spmm(
            native,
            operands,
            mean=reduce == "mean",
            accumulate=False,
            out=out,
            launch=launch,
            allocate=allocate,
        )
    x.count_reads(matrix.indices)
    return out.reshape(matrix.num_destinations, *x.shape[1:])


def table_operands(x: TableRows, e: Tensor | None = None, message: str = "copy_u") -> _C.Operands:
    """Returns the operands of messages whose source rows are read by address."""
    return _C.Operands(
        message=MESSAGES[message],
        addresses=x.addresses(),
        address_bits=x.alignment_bits,
        e=e,
        columns=columns(x.shape[1:]),
        e_columns=1 if e is None else e.shape[1],
        leases=x.leases,
        codec=x.codec,
        scale_addresses=x.scale_addresses(),
    )


def _can_read(message: str, x: TableRows, e: Tensor | None) -> bool:
    wants_gradient = e is not None and e.requires_grad and torch.is_grad_enabled()
    return (
        message in _MESSAGES
        and x.dtype in DTYPES
        and x.can_be_read
        and not wants_gradient
        and runs_plainly(x)
    )
