"""Products of the rows of mini-batches, whose numbers differ in every batch.

In half precision on a GPU, cuBLAS takes longer to choose a kernel for each new shape than most of
these products take. So the compiled module asks for kernels for few numbers of rows, and keeps
them.
"""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import launch_on
from peergraph.memory.device.launching import Buffers

# Whether this torch can write products of half precision in float32, on a GPU.
_ROUNDS_LATE = hasattr(torch.ops.aten.mm, "dtype_out")
_HALF = (torch.bfloat16, torch.float16)


def multiply(left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Writes the product of rows and a matrix, which is not rounded to the operands' dtype.

    Args:
        left: [rows, columns].
        right: [columns, out].
        out: [rows, out].
        bias: [out] of the dtype of all, or None.
    """
    if _try_compiled(left, right, out, bias):
        return
    if bias is not None:
        torch.addmm(bias, left, right, out=out)
    else:
        _multiply_by_torch(left, right, out)


def product_of_rows(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns what :func:`multiply` writes, in the dtype of the operands."""
    out = left.new_empty(left.shape[0], right.shape[1])
    multiply(left, right, out, bias)
    return out


def add_product(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Writes the product of rows and a matrix, or adds it; `first`: whether to write it."""
    if not _try_compiled(left, right, out, adds=not first):
        _add_by_torch(out, left, right, first)


def add_product_of_columns(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Writes ``left.T @ right``, or adds it; sums of pieces are not rounded to half precision.

    Args:
        out: [columns of left, columns of right].
        left, right: [rows, columns] each.
        first: whether to write it.
    """
    if not _try_compiled(left, right, out, sums_rows=True, adds=not first):
        _add_by_torch(out, left.t(), right, first)


def product_of_columns(left: Tensor, right: Tensor) -> Tensor:
    """Returns what :func:`add_product_of_columns` writes, in the dtype of the operands."""
    out = left.new_empty(left.shape[1], right.shape[1])
    add_product_of_columns(out, left, right, True)
    return out


def _try_compiled(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    sums_rows: bool = False,
    adds: bool = False,
) -> bool:
    """Multiplies by the compiled module; returns False if it cannot, and nothing was written."""
    dtype = left.dtype
    if dtype not in _HALF or not left.is_cuda or right.dtype != dtype:
        return False
    is_transposed = not right.is_contiguous()
    if is_transposed:
        right = right.t()
    if (is_transposed and sums_rows) or not (
        left.is_contiguous() and right.is_contiguous() and out.is_contiguous()
    ):
        return False
    if out.dtype != dtype and (out.dtype != torch.float32 or bias is not None):
        return False
    if not _uses_defaults(dtype):
        return False
    return _C.multiply_rows(
        left,
        right,
        bias=bias,
        out=out,
        is_transposed=is_transposed,
        sums_rows=sums_rows,
        adds=adds,
        launch=launch_on(left.device),
        allocate=Buffers(left.device),
    )


def _uses_defaults(dtype: torch.dtype) -> bool:
    """Whether torch multiplies as it does if no setting was changed."""
    settings = torch.backends.cuda.matmul
    if dtype == torch.bfloat16:
        return settings.allow_bf16_reduced_precision_reduction is True
    return (
        settings.allow_fp16_reduced_precision_reduction is True
        and not settings.allow_fp16_accumulation
    )


def _multiply_by_torch(left: Tensor, right: Tensor, out: Tensor) -> None:
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    elif left.is_cuda and _ROUNDS_LATE:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_by_torch(out: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    if first and (out.dtype == left.dtype or left.is_cuda):
        _multiply_by_torch(left, right, out)
    elif out.dtype == left.dtype:
        out.addmm_(left, right)
    elif first:
        out.copy_(left @ right)
    else:
        out.add_(left @ right)
