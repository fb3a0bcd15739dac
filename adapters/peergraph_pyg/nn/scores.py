"""GAT's scores of nodes: each head's features times the vectors of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Columns that products come in. cuBLAS takes a product with one column for a matrix times a vector;
# the gradient of the vector, a sum over all nodes, then runs in a few thread blocks: on an H200,
# with 9.4 M nodes, 4 heads and 256 features, for 1.8 s (by `einsum`), where eight columns take a
# few milliseconds. Rows of eight numbers are also read as vectors.
_COLUMNS = 8


def scores(h: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
    """`h` itself, to be used in place of it, and [rows, heads] sums of each head times a vector.

    As ``(h * vector).sum(-1)`` for each vector, in one product of matrices: [rows, heads * depth]
    times the vectors on the diagonal of blocks, zeros elsewhere. It reads `h` once for all vectors,
    while torch would write `h * vector` and sum it slowly; the zeros are few products more. Not
    finite features of one head make scores of a node's other heads not finite either.

    The gradient by way of the scores is added to that of what is returned for `h`, in place: it
    must go to one function, whose gradient is its own.

    Args:
        h: [rows, heads, depth].
        vectors: [heads, depth] each, of the same dtype.
    """
    found: tuple[Tensor, ...] = _Scores.apply(h, *vectors)  # type: ignore[no-untyped-call]
    return found


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        heads = h.shape[1]
        flat, matrix = h.flatten(1), _diagonal(vectors)
        ctx.save_for_backward(flat, matrix)
        ctx.shape = h.shape[1:]
        ctx.set_materialize_grads(False)  # `h` may be of no more use.
        found = flat @ matrix
        starts = range(0, heads * len(vectors), heads)
        # Views of one tensor would have their gradients padded and added.
        return h.view_as(h), *(found[:, at : at + heads].contiguous() for at in starts)

    @staticmethod
    def backward(
        ctx: Any, of_h: Tensor | None, *of_scores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        flat, matrix = ctx.saved_tensors
        heads, depth = ctx.shape
        grad = flat.new_zeros(flat.shape[0], matrix.shape[1])
        for i, part in enumerate(of_scores):
            if part is not None:
                grad[:, i * heads : (i + 1) * heads] = part
        of_vectors: list[Tensor | None] = [None] * len(of_scores)
        if any(ctx.needs_input_grad[1:]):
            of_matrix = flat.t() @ grad
            of_vectors = [block.t() for block in _blocks(of_matrix, heads, len(of_scores))]
        if not ctx.needs_input_grad[0]:
            return None, *of_vectors
        if of_h is None:
            return (grad @ matrix.t()).view(-1, heads, depth), *of_vectors
        # Expanded numbers, as of a sum, share memory.
        of_flat = of_h.contiguous().view(flat.shape).addmm_(grad, matrix.t())
        return of_flat.view(-1, heads, depth), *of_vectors


def _diagonal(vectors: tuple[Tensor, ...]) -> Tensor:
    """[heads * depth, columns] with the vectors of each head in that head's rows and column."""
    heads, depth = vectors[0].shape
    columns = -(-heads * len(vectors) // _COLUMNS) * _COLUMNS
    matrix = vectors[0].new_zeros(heads * depth, columns)
    for block, vector in zip(_blocks(matrix, heads, len(vectors)), vectors, strict=True):
        block.copy_(vector.t())
    return matrix


def _blocks(matrix: Tensor, heads: int, count: int) -> list[Tensor]:
    """[depth, heads] what of the matrix belongs to each of the vectors."""
    cube = matrix.view(heads, -1, matrix.shape[1])
    return [cube[:, :, i * heads : (i + 1) * heads].diagonal(dim1=0, dim2=2) for i in range(count)]
