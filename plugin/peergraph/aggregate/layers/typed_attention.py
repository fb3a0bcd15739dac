"""Graph attention over all relations of a typed layer at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.attention import AttentionSum, attention
from peergraph.aggregate.ops.edge_softmax import edge_softmax
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.spmm import Sum, spmm
from peergraph.aggregate.ops.typed_projection import AttentionRelation, project
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.typed_edges import TypedEdges
from peergraph.memory import EncodedRows


def typed_gat(
    edges: TypedEdges,
    features: Sequence[Tensor | EncodedRows],
    relations: Sequence[AttentionRelation],
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
    added: bool = True,
    concat: bool = False,
) -> list[Tensor]:
    """Sums graph attention (Velickovic et al. 2018) over all relations of a layer.

    Only sources that have edges in a relation are multiplied by its weight. All relations of a node
    type score its destinations in one product of a few columns. One kernel runs over the edges of
    all relations. The backward pass reads the rows of features again, so that nothing of their size
    is kept.

    Args:
        edges: the edges; each relation's destinations are those of ``relations[i].destination``.
        features: [rows, columns] of each node type, of `dtype`, or encoded rows.
        relations: parameters of each relation of `edges`, with the same heads and depth.
        negative_slope: of leaky_relu.
        dropout: probability of dropping a weight. With it, the weights of edges are written, a
            number for each edge and head.
        dtype: of products and sums; None: that of the features.
        added: whether the relations of a node type are added up.
        concat: whether the results have heads side by side, [edges.sizes, heads * depth].

    Returns:
        For each node type [edges.sizes, heads, depth] of `dtype`: the sums over its relations. If
        they are not added, the same for each relation. Later destinations have no edges, so that
        their sums are zeros.

    Synchronises no GPU. Differentiable once.
    """
    heads, depth = relations[0].source_vector.shape[-2:]
    dtype = features[relations[0].source].dtype if dtype is None else dtype
    used: set[int] = set()
    x, left, right = project(edges, features, relations, dtype, used)
    out = _attend(edges.matrix, x.view(-1, heads, depth), left, right, negative_slope, dropout)
    by_type: tuple[Tensor, ...] = _ByType.apply(out.flatten(1), edges, used, added)  # type: ignore[no-untyped-call]
    results = list(by_type)
    if not added:
        results = []
        for i, relation in enumerate(relations):
            node_type = relation.destination
            place, places = edges.by_destination[node_type].index(i), edges.score_places(node_type)
            results.append(by_type[node_type].view(-1, places, heads * depth)[:, place])
    return results if concat else [each.view(-1, heads, depth) for each in results]


def _attend(
    matrix: EdgeMatrix, x: Tensor, left: Tensor, right: Tensor, slope: float, dropout: float
) -> Tensor:
    if dropout == 0:
        return attention(matrix, AttentionSum(x, left, right, negative_slope=slope))
    scores = F.leaky_relu(sddmm(matrix, "add", left, right), slope)
    weights = F.dropout(edge_softmax(matrix, scores), dropout).to(x.dtype)
    return spmm(matrix, Sum("mul", "sum", x, weights.unsqueeze(-1)))


class _ByType(torch.autograd.Function):
    """The rows by node type of their destinations: added up for each destination, or as many rows
    for each as it has places for scores, zeros where there is none.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, edges: TypedEdges, used: set[int], added: bool
    ) -> tuple[Tensor, ...]:
        ctx.edges, ctx.used, ctx.added = edges, used, added
        ctx.set_materialize_grads(False)
        ctx.columns = rows.shape[1]
        if added:
            total = edges.sums.sum_messages(rows.contiguous(), None, "copy_u")
        else:
            total = rows.new_zeros(edges.num_scores, rows.shape[1])
            total.index_copy_(0, edges.score_rows, rows)
        return torch.split(total, _lengths(edges, added))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        """Records the node types with a gradient: as in torch, parameters of others get none."""
        edges, used = ctx.edges, ctx.used
        used.clear()
        used.update(node_type for node_type, grad in enumerate(grads) if grad is not None)
        first = next((grad for grad in grads if grad is not None), None)
        if first is None:
            return None, None, None, None
        parts = [
            first.new_zeros(length, ctx.columns) if grad is None else grad
            for length, grad in zip(_lengths(edges, ctx.added), grads, strict=True)
        ]
        places = edges.owners if ctx.added else edges.score_rows
        return torch.cat(parts).index_select(0, places), None, None, None


def _lengths(edges: TypedEdges, added: bool) -> list[int]:
    """Returns the number of results of each node type."""
    if added:
        return edges.sizes
    return [size * edges.score_places(node_type) for node_type, size in enumerate(edges.sizes)]
