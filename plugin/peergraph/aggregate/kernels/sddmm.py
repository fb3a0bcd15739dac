"""What is written by edge, as operators on tensors: two dimensions, no autograd, nothing checked.

indptr, indices, edge_ids, num_columns and max_chunks are those of
:class:`peergraph.aggregate.sparse.csr.CsrMatrix`.
"""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    DTYPES,
    MESSAGES,
    ROWS,
    TARGETS,
    address,
    adjacency,
    dense,
    operand_of,
    place,
)
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.allocate import Buffers


def _fake_sddmm(
    left: Tensor | None,
    right: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    targets: str,
    heads: int,
    depth: int,
) -> Tensor:
    return operand_of(left, right).new_empty(indices.shape[0], heads)


@kernel(
    f"(Tensor? left, Tensor? right, {ROWS}, str message, str targets, int heads, int depth)"
    " -> Tensor",
    _fake_sddmm,
)
def sddmm(
    left: Tensor | None,
    right: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
    message: str,
    targets: str,
    heads: int,
    depth: int,
) -> Tensor:
    """[edges, heads]: the message of `left` and `right`, summed over `depth` columns for a head.

    `targets` has two letters: where the rows of `left` and of `right` are looked up, u (column),
    v (row) or e (edge). An operand has heads * depth columns or a divisor.
    """
    left, right = dense(left), dense(right)
    out = operand_of(left, right).new_empty(indices.numel(), heads)
    _C.sddmm(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        left=_operand(left, targets[0]),
        right=_operand(right, targets[1]),
        message=MESSAGES[message],
        dtype=DTYPES[out.dtype],
        heads=heads,
        depth=depth,
        out=out.data_ptr(),
        **place(out.device),
    )
    return out


def _operand(tensor: Tensor | None, target: str) -> tuple[int, int, int]:
    if tensor is None:
        return 0, TARGETS[target], 0
    return tensor.data_ptr(), TARGETS[target], tensor.shape[1]


def _fake_softmax(
    values: Tensor,
    grad: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> Tensor:
    return values.new_empty(values.shape)


@kernel(f"(Tensor values, Tensor? grad, {ROWS}) -> Tensor", _fake_softmax)
def softmax(
    values: Tensor,
    grad: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_ids: Tensor | None,
    num_columns: int,
    max_chunks: int,
) -> Tensor:
    """Softmax of `values` [edges, heads] in each row; with `grad`, the gradient of the scores.

    For the gradient, `values` are the softmax.
    """
    values, grad = values.contiguous(), dense(grad)
    out = values.new_empty(values.shape)
    _C.edge_softmax(
        rows=adjacency(indptr, indices, edge_ids, num_columns),
        dtype=DTYPES[values.dtype],
        heads=values.shape[1],
        values=values.data_ptr(),
        grad=address(grad),
        out=out.data_ptr(),
        allocate=Buffers(out.device),
        **place(out.device),
    )
    return out
