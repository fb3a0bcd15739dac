"""Scores of nodes in GAT: products of each head's features and attention vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from peergraph.aggregate.ops.product_order import FAST_COLUMNS
from peergraph.autograd import Function


def node_scores(h: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Returns `h`, to be used in its place, and a score [rows, heads] for each vector.

    A score is ``(h * vector).sum(-1)``. All come from one product: [rows, heads * depth] times the
    vectors on the diagonal of blocks, with zeros elsewhere. It reads `h` once for all vectors,
    where torch would write ``h * vector`` and sum slowly; the products with zeros are few.
    Features of one head that are not finite make the node's scores of other heads not finite too.

    The gradient of the scores is added in place to that of the returned `h`, which must therefore
    go to one function only.

    Args:
        h: [rows, heads, depth].
        vectors: [heads, depth] each, of the same dtype.
    """
    if has_torch_function_unary(h):  # a tensor that is more than its values records the whole
        handled: tuple[Tensor, ...] = handle_torch_function(node_scores, (h,), h, *vectors)
        return handled
    if torch.compiler.is_compiling():  # which makes one pass of these
        return h, *((h * vector).sum(-1) for vector in vectors)
    scores: tuple[Tensor, ...] = _Scores.apply(h, *vectors)
    return scores


class _Scores(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        heads = h.shape[1]
        flat, matrix = h.flatten(1), _diagonal(vectors)
        ctx.save_for_backward(flat, matrix)
        ctx.shape = h.shape[1:]
        scores = flat @ matrix
        starts = range(0, heads * len(vectors), heads)
        # Views of one tensor would have their gradients padded and added.
        return h.view_as(h), *(scores[:, start : start + heads].contiguous() for start in starts)

    @staticmethod
    def backward(
        ctx: Any, grad_h: Tensor | None, *grad_scores: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grads = [grad for grad in grad_scores if grad is not None]
        if not grads:
            return grad_h, *([None] * len(grad_scores))
        flat, matrix = ctx.saved_tensors
        heads, depth = ctx.shape
        # Autocast makes scores of another dtype.
        zeros = torch.zeros_like(grads[0][:, :1], dtype=flat.dtype)
        parts = [
            zeros.expand(-1, heads) if part is None else part.to(flat.dtype) for part in grad_scores
        ]
        padding = matrix.shape[1] - heads * len(parts)
        grad = torch.cat([*parts, zeros.expand(-1, padding)], dim=1)
        grad_vectors: list[Tensor | None] = [None] * len(grad_scores)
        if any(ctx.needs_input_grad[1:]):
            grad_matrix = flat.t() @ grad
            grad_vectors = [block.t() for block in _blocks(grad_matrix, heads, len(grad_scores))]
        if not ctx.needs_input_grad[0]:
            return None, *grad_vectors
        if grad_h is None:
            return (grad @ matrix.t()).view(-1, heads, depth), *grad_vectors
        # An expanded gradient, such as that of a sum, shares memory.
        grad_flat = grad_h.contiguous().view(flat.shape).addmm_(grad, matrix.t())
        return grad_flat.view(-1, heads, depth), *grad_vectors


def _diagonal(vectors: tuple[Tensor, ...]) -> Tensor:
    """Returns [heads * depth, columns] with each head's vectors in that head's rows and columns."""
    heads, depth = vectors[0].shape
    columns = -(-heads * len(vectors) // FAST_COLUMNS) * FAST_COLUMNS
    matrix = vectors[0].new_zeros(heads * depth, columns)
    for block, vector in zip(_blocks(matrix, heads, len(vectors)), vectors, strict=True):
        block.copy_(vector.t())
    return matrix


def _blocks(matrix: Tensor, heads: int, count: int) -> list[Tensor]:
    """Returns the entries of the matrix that belong to each vector, [depth, heads]."""
    cube = matrix.view(heads, -1, matrix.shape[1])
    return [cube[:, :, i * heads : (i + 1) * heads].diagonal(dim1=0, dim2=2) for i in range(count)]
