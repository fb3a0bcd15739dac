"""Sums from destinations to sources, which gradients of sources are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import first_operand, sum_dtype
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.spmm import add_spmm_transposed_atomic, spmm_transposed_atomic
from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.memory.device.default_machine import WORK


def sum_to_sources(
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    x: Tensor | None,
    e: Tensor | None,
    message: str,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the sum of the messages of each source's edges, [sources, columns].

    Args:
        matrix: the edges.
        transpose: the transpose of `matrix`, or None to add by atomics.
        x: [destinations, columns], or None.
        e: [edges, columns or a divisor], or None.
        message: as in :func:`peergraph.aggregate.g_spmm`.
        dtype: of the result; None: that of the operands.
    """
    operand = first_operand(x, e)
    dtype = operand.dtype if dtype is None else dtype
    if transpose is not None:
        return transpose.sum_messages(x, e, message).to(dtype)
    if dtype == operand.dtype or not accumulates_in(dtype):
        counts = matrix.duplicate_counts
        sums = spmm_transposed_atomic(x, e, counts, matrix.tensors, message)
        return sums.to(dtype)
    out = operand.new_zeros(matrix.num_sources, operand.shape[1], dtype=dtype)
    add_spmm_transposed_atomic(out, x, e, None, matrix.tensors, message)
    return out


def add_sum_to_sources_(
    onto: Tensor,
    matrix: EdgeMatrix,
    transpose: EdgeMatrix | None,
    x: Tensor,
    e: Tensor | None,
    message: str,
) -> Tensor:
    """Adds the sums of :func:`sum_to_sources` to `onto` [sources, columns] in place.

    Atomics add to the values of `onto`, so that no zeros and no second matrix are written.
    """
    if transpose is not None and onto.dtype == x.dtype and onto.is_contiguous():
        transpose.add_messages(onto, x, e, message)
        return onto
    if transpose is not None or not accumulates_in(onto.dtype):
        return onto.add_(sum_to_sources(matrix, transpose, x, e, message))
    add_spmm_transposed_atomic(onto, x, e, None, matrix.tensors, message)
    return onto


def accumulates_in(dtype: torch.dtype) -> bool:
    """Returns whether kernels keep sums of values of `dtype` in `dtype`."""
    return dtype == sum_dtype(dtype)


def divide_by_degrees(matrix: EdgeMatrix, grad: Tensor) -> Tensor:
    """Returns `grad` [destinations, columns] divided by the number of edges of each row.

    Degrees are kept in the dtype of sums, since float16 has no room for large ones.
    """
    return (grad / matrix.divisors(sum_dtype(grad.dtype)).unsqueeze(1)).to(grad.dtype)


def gradient_of_sums(matrix: EdgeMatrix, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the gradient of sums, given that of means: rows, and weights of edges.

    Args:
        matrix: the edges.
        grad: [destinations, columns], the gradient of means.

    Returns:
        [destinations, columns], and weights [edges, 1] to multiply by, or None for ones.
    """
    if (
        is_traced()
        or not accumulates_in(grad.dtype)
        or grad.shape[1] < WORK.mean_columns
        or matrix.num_edges > WORK.mean_edges * matrix.num_destinations
    ):
        return divide_by_degrees(matrix, grad), None
    inverse = matrix.divisors(grad.dtype).unsqueeze(1).reciprocal_()
    weight = sddmm(inverse, None, matrix.tensors, "copy_u", "vv", 1, 1)
    return grad, weight
