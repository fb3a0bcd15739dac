"""Sums of messages (g-SpMM) as operators: two dimensions, no autograd, nothing checked.

`x` has the features of the columns (sources), `e` those of the edges, or of groups of columns of
`x`: [edges, divisor of the columns].
"""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    DTYPES,
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


def _empty_sums(x: Tensor | None, e: Tensor | None, matrix: CsrTensors) -> Tensor:
    operand = first_operand(x, e)
    return operand.new_empty(matrix.num_rows, operand.shape[1])


@kernel(_empty_sums)
def spmm(
    x: Tensor | None, e: Tensor | None, matrix: CsrTensors, message: str, mean: bool
) -> Tensor:
    """Returns the sum or mean of the messages in each row, [rows, columns]."""
    out = _empty_sums(x, e, matrix)
    _spmm(out, x, e, matrix, message, mean, False)
    return out


def add_spmm(
    out: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    matrix: CsrTensors,
    message: str,
    mean: bool = False,
) -> None:
    """Adds the sum or mean of the messages in each row to `out` [rows, columns]; no operator.

    Each value of `out` is rounded to its dtype once. Raises ValueError for an `out` that is not
    contiguous or not of the operands' dtype.
    """
    dtype = first_operand(x, e).dtype
    if out.dtype != dtype or not out.is_contiguous():
        raise ValueError(f"out must be contiguous and {dtype}, got strides {out.stride()} and "
                         f"{out.dtype}")  # fmt: skip
    _spmm(out, x, e, matrix, message, mean, True)


def spmm_into(out: Tensor, x: Tensor, matrix: CsrTensors, mean: bool) -> None:
    """Writes the sum or mean of rows of `x` [num_columns, columns] in each row; no operator.

    Args:
        out: [rows, at least `columns`] contiguous, of the dtype of `x`, or float16 or bfloat16 for
            float32: sums are rounded once. Other columns keep their values.
    """
    x = dense(x)
    _C.spmm(
        matrix.native(),
        operands("copy_u", x, None, x.shape[1]),
        mean=mean,
        accumulate=False,
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
        dtype=DTYPES[x.dtype],
    )


def _spmm(
    out: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    matrix: CsrTensors,
    message: str,
    mean: bool,
    accumulate: bool,
) -> None:
    x, e = contiguous(x), contiguous(e)
    _C.spmm(
        matrix.native(),
        operands(message, x, e, out.shape[1]),
        mean=mean,
        accumulate=accumulate,
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
    )


def _empty_transposed_sums(x: Tensor | None, e: Tensor | None, matrix: CsrTensors) -> Tensor:
    operand = first_operand(x, e)
    return operand.new_empty(matrix.num_columns, operand.shape[1])


@kernel(_empty_transposed_sums)
def spmm_transposed_atomic(
    x: Tensor | None, e: Tensor | None, counts: Tensor | None, matrix: CsrTensors, message: str
) -> Tensor:
    """Returns the sum of messages from rows (`x` is by row) to columns, [num_columns, columns].

    A GPU adds by atomics, in no fixed order. `counts` [num_columns] int32 says how often a column
    occurs at most, or is None: where it says once, the only message is stored without an atomic.
    """
    operand = first_operand(x, e)
    out = operand.new_zeros(matrix.num_columns, operand.shape[1], dtype=sum_dtype(operand.dtype))
    add_spmm_transposed_atomic(out, x, e, counts, matrix, message)
    return out.to(operand.dtype)


def add_spmm_transposed_atomic(
    out: Tensor,
    x: Tensor | None,
    e: Tensor | None,
    counts: Tensor | None,
    matrix: CsrTensors,
    message: str,
) -> None:
    """Adds to `out` [num_columns, columns] of the sums' dtype; no operator.

    `counts` as for :func:`spmm_transposed_atomic`, and only where `out` is zero.
    """
    x, e = contiguous(x), contiguous(e)
    _C.spmm_transposed(
        matrix.native(),
        operands(message, x, e, out.shape[1]),
        dtype=DTYPES[first_operand(x, e).dtype],
        counts=counts,
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
    )
