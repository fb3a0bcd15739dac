"""Extrema of messages as operators on tensors; arguments as in sums.py."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    DTYPES,
    ROWS,
    adjacency,
    dense,
    operand_of,
    operands,
    place,
    sum_dtype,
)
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.allocate import Buffers

_MOST_NARROW = torch.iinfo(torch.int32).max


def _fake_extremum(
    x: Tensor | None,
    e: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    minimum: bool,
) -> tuple[Tensor, Tensor]:
    operand = operand_of(x, e)
    out = operand.new_empty(indptr.shape[0] - 1, operand.shape[1])
    return out, torch.empty_like(out, dtype=_dtype_of_positions(indptr, indices))


def _dtype_of_positions(indptr: Tensor, indices: Tensor) -> torch.dtype:
    """Narrow on the CPU where they fit: to write them takes about as long as to compare."""
    narrow = indices.device.type == "cpu" and indices.shape[0] <= _MOST_NARROW
    return torch.int32 if narrow else indptr.dtype


@kernel(
    f"(Tensor? x, Tensor? e, {ROWS}, str message, bool minimum) -> (Tensor, Tensor)",
    _fake_extremum,
)
def extremum(
    x: Tensor | None,
    e: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    minimum: bool,
) -> tuple[Tensor, Tensor]:
    """Largest or smallest message of each row and column, and its first position or -1."""
    x, e = dense(x), dense(e)
    operand = operand_of(x, e)
    out = operand.new_empty(indptr.numel() - 1, operand.shape[1])
    arg = torch.empty_like(out, dtype=_dtype_of_positions(indptr, indices))
    _C.extremum(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        of=operands(message, x, e, out.shape[1], 1 if e is None else e.shape[1]),
        dtype=DTYPES[out.dtype],
        minimum=minimum,
        out=out.data_ptr(),
        arg=arg.data_ptr(),
        arg_bytes=arg.element_size(),
        max_chunks=max_chunks,
        allocate=Buffers(out.device),
        **place(out.device),
    )
    return out, arg


def _fake_extremum_grad(
    grad: Tensor,
    arg: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    e_columns: int,
    wanted: list[bool],
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    transposed: list[Tensor],
    message: str,
) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty(num_columns if wanted[0] else 0, grad.shape[1]),
        grad.new_empty(indices.shape[0] if wanted[1] else 0, e_columns),
    )


@kernel(
    "(Tensor grad, Tensor arg, Tensor? x, Tensor? e, int e_columns, bool[] wanted, Tensor indptr,"
    " Tensor indices, Tensor? edge_ids, int num_columns, Tensor[] transposed, str message)"
    " -> (Tensor, Tensor)",
    _fake_extremum_grad,
)
def extremum_grad(
    grad: Tensor,
    arg: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    e_columns: int,
    wanted: list[bool],
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    transposed: list[Tensor],
    message: str,
) -> tuple[Tensor, Tensor]:
    """Gradients of `x` and `e`, each empty where it is not wanted.

    `transposed` is empty, or has the transpose's indptr, indices and positions: then `x`'s gradient
    is summed in a fixed order.
    """
    grad, x, e = grad.contiguous(), dense(x), dense(e)
    dtype = sum_dtype(grad.dtype)
    grad_x = grad.new_zeros(num_columns if wanted[0] else 0, grad.shape[1], dtype=dtype)
    grad_e = grad.new_zeros(indices.numel() if wanted[1] else 0, e_columns, dtype=dtype)
    _C.extremum_grad(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        of=operands(message, x, e, grad.shape[1], e_columns),
        dtype=DTYPES[grad.dtype],
        arg=arg.data_ptr(),
        arg_bytes=arg.element_size(),
        grad=grad.data_ptr(),
        grad_x=grad_x.data_ptr() if wanted[0] else 0,
        grad_e=grad_e.data_ptr() if wanted[1] else 0,
        transpose=_transpose(transposed, arg.shape[0]),
        **place(grad.device),
    )
    return grad_x.to(grad.dtype), grad_e.to(grad.dtype)


def _transpose(tensors: list[Tensor], num_columns: int) -> _C.CsrMatrix | None:
    if not tensors:
        return None
    indptr, indices, positions = tensors
    return adjacency(indptr, indices, positions, num_columns)
