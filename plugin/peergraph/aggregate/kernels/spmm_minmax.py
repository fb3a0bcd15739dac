"""Largest or smallest messages of each row as operators; arguments as in spmm.py."""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    CsrTensors,
    contiguous,
    first_operand,
    launch_on,
    operands,
    sum_dtype,
)
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.plain_tensor import dense

_MAX_INT32 = torch.iinfo(torch.int32).max


def _empty_minmax(x: Tensor | None, e: Tensor | None, matrix: CsrTensors) -> tuple[Tensor, Tensor]:
    operand = first_operand(x, e)
    out = operand.new_empty(matrix.num_rows, operand.shape[1])
    dtype = dtype_of_positions(matrix.indptr, matrix.num_edges)
    return out, torch.empty_like(out, dtype=dtype)


def dtype_of_positions(ids: Tensor, num_edges: int) -> torch.dtype:
    """Returns the dtype of positions of edges.

    int32 on the CPU where positions fit: writing them takes about as long as comparing.

    Args:
        ids: offsets, or ids of the same dtype and device.
        num_edges: bound of the positions.
    """
    fits = ids.device.type == "cpu" and num_edges <= _MAX_INT32
    return torch.int32 if fits else ids.dtype


@kernel(_empty_minmax)
def spmm_minmax(
    x: Tensor | None, e: Tensor | None, matrix: CsrTensors, message: str, minimum: bool
) -> tuple[Tensor, Tensor]:
    """Returns the largest or smallest message of each row and column, and its first position.

    The position is -1 in rows without edges.
    """
    out, arg = _empty_minmax(x, e, matrix)
    x, e = contiguous(x), contiguous(e)  # The operands hold addresses only.
    _C.spmm_minmax(
        matrix.native(),
        operands(message, x, e, out.shape[1]),
        minimum=minimum,
        out=out,
        arg=arg,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
    )
    return out, arg


def _empty_gradients(
    grad: Tensor, e_columns: int, wants_x: bool, wants_e: bool, matrix: CsrTensors
) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty(matrix.num_columns if wants_x else 0, grad.shape[1]),
        grad.new_empty(matrix.num_edges if wants_e else 0, e_columns),
    )


@kernel(_empty_gradients)
def spmm_minmax_backward(
    grad: Tensor,
    arg: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    e_columns: int,
    wants_x: bool,
    wants_e: bool,
    matrix: CsrTensors,
    transpose: CsrTensors | None,
    message: str,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `x` and `e`, each empty where it is not wanted.

    With `transpose`, whose edge ids are positions in `matrix`, the gradient of `x` is summed in a
    fixed order.
    """
    grad, x, e = dense(grad), contiguous(x), contiguous(e)
    dtype = sum_dtype(grad.dtype)
    grad_x = grad.new_zeros(matrix.num_columns if wants_x else 0, grad.shape[1], dtype=dtype)
    grad_e = grad.new_zeros(matrix.num_edges if wants_e else 0, e_columns, dtype=dtype)
    _C.spmm_minmax_backward(
        matrix.native(),
        operands(message, x, e, grad.shape[1], e_columns),
        arg=arg,
        grad=grad,
        grad_x=grad_x if wants_x else None,
        grad_e=grad_e if wants_e else None,
        transpose=None if transpose is None else transpose.native(),
        launch=launch_on(grad.device),
    )
    return grad_x.to(grad.dtype), grad_e.to(grad.dtype)
