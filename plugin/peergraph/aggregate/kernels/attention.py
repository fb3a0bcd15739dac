"""Graph attention as operators on tensors: no autograd, nothing checked.

`x` is [columns, heads, depth]. Scores that are not dynamic come of `left` [columns, heads] and
`right` [rows, heads] or None; dynamic ones of `att` [heads, depth] and `right` [rows, heads,
depth]. `loops` is -1 for the edges as they are, else how many nodes have a self loop each in place
of those among the edges. Numbers of nodes and parameters are kept in float32, in float64 for
float64.
"""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, ROWS, address, adjacency, place, sum_dtype
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.allocate import Buffers

_OPERANDS = "Tensor x, Tensor? left, Tensor? right, Tensor? att, int loops, float slope"


def _attention(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    loops: int,
    slope: float,
    rows: _C.CsrMatrix,
) -> _C.Attention:
    return _C.Attention(
        rows=rows,
        dtype=DTYPES[x.dtype],
        dynamic=att is not None,
        heads=x.shape[1],
        depth=x.shape[2],
        loops=loops,
        slope=slope,
        x=x.data_ptr(),
        left=address(left),
        right=address(right),
        att=address(att),
    )


def _fake_attend(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    loops: int,
    slope: float,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> tuple[Tensor, Tensor]:
    rows = indptr.shape[0] - 1
    lse = x.new_empty(rows, x.shape[1], dtype=sum_dtype(x.dtype))
    return x.new_empty(rows, *x.shape[1:]), lse


@kernel(f"({_OPERANDS}, {ROWS}) -> (Tensor, Tensor)", _fake_attend)
def attend(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    loops: int,
    slope: float,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> tuple[Tensor, Tensor]:
    """[rows, heads, depth], and [rows, heads] log of the sum of exp(score)."""
    rows = indptr.numel() - 1
    out = x.new_empty(rows, *x.shape[1:])
    lse = x.new_empty(rows, x.shape[1], dtype=sum_dtype(x.dtype))
    matrix = adjacency(indptr, indices, None, num_columns)
    _C.attention(
        of=_attention(x, left, right, att, loops, slope, matrix),
        out=out.data_ptr(),
        lse=lse.data_ptr(),
        max_chunks=max_chunks,
        allocate=Buffers(out.device),
        **place(out.device),
    )
    return out, lse


def _fake_grad(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    loops: int,
    slope: float,
    grad: Tensor,
    lse: Tensor,
    delta: Tensor,
    to_columns: bool,
    to_rows: bool,
    transpose: list[Tensor],
    transpose_chunks: int,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> list[Tensor]:
    return _results(x, left, right, att, grad.shape[0], to_columns, to_rows)


def _results(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    rows: int,
    to_columns: bool,
    to_rows: bool,
) -> list[Tensor]:
    """Zeros for the gradients of x, left, right and of att by row; empty where not wanted."""
    dtype = sum_dtype(x.dtype)
    columns, wide = x.shape[0] if to_columns else 0, (x.shape[1], x.shape[2])
    rows = rows if to_rows else 0
    return [
        x.new_zeros(columns, *wide, dtype=dtype),
        x.new_zeros(0 if left is None else columns, x.shape[1], dtype=dtype),
        x.new_zeros(0 if right is None else rows, *(wide if att is not None else wide[:1]),
                    dtype=dtype),
        x.new_zeros(0 if att is None else rows, *wide, dtype=dtype),
    ]  # fmt: skip


@kernel(
    f"({_OPERANDS}, Tensor grad, Tensor lse, Tensor delta, bool to_columns, bool to_rows,"
    f" Tensor[] transpose, int transpose_chunks, {ROWS}) -> Tensor[]",
    _fake_grad,
)
def attend_grad(
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    loops: int,
    slope: float,
    grad: Tensor,
    lse: Tensor,
    delta: Tensor,
    to_columns: bool,
    to_rows: bool,
    transpose: list[Tensor],
    transpose_chunks: int,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> list[Tensor]:
    """Gradients of x, left, right, and of att by row.

    `transpose` has indptr and indices of the transpose: gradients then belong to its rows (x, left)
    or to those of the structure (right, att), whichever is wanted, and both where what is wanted of
    rows can be added by atomics. Empty: all by atomics, or on the CPU those of rows.
    """
    results = _results(x, left, right, att, grad.shape[0], to_columns, to_rows)
    matrix = adjacency(indptr, indices, None, num_columns)
    transposed = None
    if transpose:
        transposed = adjacency(transpose[0], transpose[1], None, indptr.numel() - 1)
    addresses = [tensor.data_ptr() if tensor.numel() else 0 for tensor in results]
    _C.attention_grad(
        of=_attention(x, left, right, att, loops, slope, matrix),
        grad=grad.data_ptr(),
        lse=lse.data_ptr(),
        delta=delta.data_ptr(),
        grad_x=addresses[0],
        grad_left=addresses[1],
        grad_right=addresses[2],
        grad_att=addresses[3],
        transpose=transposed,
        max_chunks=transpose_chunks if transpose else max_chunks,
        allocate=Buffers(grad.device),
        **place(grad.device),
    )
    return results
