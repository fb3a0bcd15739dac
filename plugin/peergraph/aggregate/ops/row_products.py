"""Products of the rows of mini-batches, on a GPU in pieces whose shapes repeat.

Every batch has other numbers of rows, and cuBLAS takes a tenth of a millisecond of the host to
choose a kernel for a shape that it has not seen: longer than most of these products. So all but the
last rows are multiplied by themselves, a number of which few differ; and then the last ones, a
power of two of them. The two pieces overlap.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Whether this torch can write products of half precision in float32, on a GPU.
_ROUNDS_LATE = hasattr(torch.ops.aten.mm, "dtype_out")
# Products of fewer rows are not divided; of others, the second piece is 1 / 64 to 1 / 32.
_LEAST_ROWS = 256
_PIECE_BITS = 5


def row_pieces(rows: Tensor) -> list[slice]:
    """Returns ranges that cover the last dimension but one: a range, or two that overlap.

    The shapes that a CUDA graph captures are those of all its replays, and need no pieces.
    """
    count = rows.shape[-2]
    if count < _LEAST_ROWS or not _chooses_by_shape(rows):
        return [slice(0, count)]
    last = 1 << (count.bit_length() - 1 - _PIECE_BITS)
    first = count // last * last
    return [slice(0, first)] if first == count else [slice(0, first), slice(count - last, count)]


def _chooses_by_shape(rows: Tensor) -> bool:
    return rows.is_cuda and not torch.cuda.is_current_stream_capturing()


def multiply(left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Writes the product of rows and a matrix, which is not rounded to the operands' dtype.

    Args:
        left: [rows, columns], or [products, rows, columns] and so on.
        right: [columns, out].
        out: [rows, out].
        bias: [out] of the dtype of all, or None. Not of several products.
    """
    for piece in row_pieces(left):
        if bias is None:
            _multiply(left[..., piece, :], right, out[..., piece, :])
        else:
            torch.addmm(bias, left[piece], right, out=out[piece])


def rows_times(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns what :func:`multiply` writes, in the dtype of the operands."""
    out = left.new_empty(*left.shape[:-1], right.shape[-1])
    multiply(left, right, out, bias)
    return out


def add_product(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Writes the product of rows and a matrix, or adds it; `first`: whether to write it."""
    end = 0
    for piece in row_pieces(left):
        if first or end == 0:
            _add_to(out[piece], left[piece], right, first)
        else:  # The other rows of the second piece were in the first one.
            out[end:] += (left[piece] @ right)[end - piece.start :]
        end = piece.stop


def add_product_of_columns(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Writes ``left.mT @ right``, or adds it; sums of pieces are not rounded to half precision.

    Args:
        out: [columns of left, columns of right].
        left, right: [rows, columns], or [products, rows, columns].
        first: whether to write it.
    """
    end = 0
    for piece in row_pieces(left):
        of_left = left[..., piece, :]
        if piece.start < end:
            of_left = F.pad(left[..., end:, :], (0, 0, end - piece.start, 0))
        _add_to(out, of_left.mT, right[..., piece, :], first and end == 0)
        end = piece.stop


def columns_times(left: Tensor, right: Tensor) -> Tensor:
    """Returns what :func:`add_product_of_columns` writes, in the dtype of the operands."""
    out = left.new_empty(left.shape[1], right.shape[1])
    add_product_of_columns(out, left, right, True)
    return out


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    function = torch.mm if left.dim() == 2 else torch.bmm
    if out.dtype == left.dtype:
        function(left, right, out=out)
    elif left.is_cuda and _ROUNDS_LATE:
        function(left, right, out_dtype=out.dtype, out=out)
    else:
        function(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_to(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    if first and (out.dtype == left.dtype or left.is_cuda):
        _multiply(left, right, out)
    elif out.dtype == left.dtype:
        out.addmm_(left, right) if left.dim() == 2 else out.baddbmm_(left, right)
    elif first:
        out.copy_(left @ right)
    else:
        out.add_(left @ right)
