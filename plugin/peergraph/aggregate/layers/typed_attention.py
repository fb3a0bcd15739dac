"""Graph attention over all relations of a typed layer at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.attention import attention
from peergraph.aggregate.ops.row_products import Selection, row_products
from peergraph.aggregate.sparse.typed_edges import TypedEdges
from peergraph.memory import EncodedRows

# Products with few columns are slow unless they have a multiple of this number.
_COLUMNS = 8


@dataclass(frozen=True)
class AttentionRelation:
    """The parameters of one relation, whose features are multiplied by `weight` and then summed.

    Args:
        source, destination: the positions of the node types among the features.
        weight: [heads * depth, columns of sources].
        source_vector: [heads, depth] attention vector of sources.
        destination_weight: [heads * depth, columns of destinations].
        destination_vector: [heads, depth] attention vector of destinations.
    """

    source: int
    destination: int
    weight: Tensor
    source_vector: Tensor
    destination_weight: Tensor
    destination_vector: Tensor


def typed_gat(
    edges: TypedEdges,
    features: Sequence[Tensor | EncodedRows],
    relations: Sequence[AttentionRelation],
    *,
    negative_slope: float = 0.2,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Sums graph attention (Velickovic et al. 2018) over all relations of a layer.

    Only sources that have edges in a relation are multiplied by its weight. Scores take no products
    of that width: ``(x W) . a = x (W a)``, so all relations of a node type score its destinations
    in one product of a few columns. One kernel runs over the edges of all relations. The backward
    pass reads the rows of features again, so that nothing of their size is kept.

    Args:
        edges: the edges; each relation's destinations are those of ``relations[i].destination``.
        features: [rows, columns] of each node type, of `dtype`, or encoded rows.
        relations: parameters of each relation of `edges`, with the same heads and depth.
        negative_slope: of leaky_relu.
        dtype: of products and sums; None: that of the features.

    Returns:
        For each node type [edges.sizes, heads, depth] of `dtype`: the sums over its relations.
        Later destinations have no edges, so that their sums are zeros.

    Synchronises no GPU. Differentiable once.
    """
    heads, depth = relations[0].source_vector.shape
    dtype = features[relations[0].source].dtype if dtype is None else dtype
    weights: list[Tensor] = []
    scores: list[Tensor] = []
    for weight, score in zip(
        _stacks([each.weight for each in relations]), _source_scores(relations), strict=True
    ):
        weights += weight.to(dtype).unbind()
        scores += score.to(dtype).unbind()
    selections = [
        Selection(relation.source, sources)
        for relation, sources in zip(relations, edges.sources, strict=True)
    ]
    count = len(relations)
    outputs = [[(i, i) for i in range(count)], [(i, count + i) for i in range(count)]]
    weights += scores
    into = [node_type for node_type, size in enumerate(edges.sizes) if size]
    for node_type in into:
        weights.append(_destination_scores(relations, edges.by_destination[node_type]).to(dtype))
        outputs.append([(len(selections), len(weights) - 1)])
        selections.append(Selection(node_type, edges.sizes[node_type]))
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    dtypes = [dtype, *[sums] * (len(outputs) - 1)]
    x, left, *right = row_products(features, selections, weights, outputs, dtype, dtypes)
    of_destinations = [
        scores[:, : heads * len(edges.by_destination[node_type])].reshape(-1, heads)
        for scores, node_type in zip(right, into, strict=True)
    ]
    of_rows = torch.cat(of_destinations).index_select(0, edges.score_rows)
    out = attention(
        edges.matrix,
        x.view(-1, heads, depth),
        left[:, :heads],
        of_rows,
        negative_slope=negative_slope,
    )
    summed: Tensor = _SumRows.apply(out.flatten(1), edges)  # type: ignore[no-untyped-call]
    return [each.view(-1, heads, depth) for each in torch.split(summed, edges.sizes)]


def _stacks(weights: list[Tensor]) -> list[Tensor]:
    """Returns weights of consecutive relations with the same shape as one tensor each."""
    return [
        torch.stack(list(group)) for _, group in groupby(weights, key=lambda weight: weight.shape)
    ]


def _source_scores(relations: Sequence[AttentionRelation]) -> list[Tensor]:
    """Returns by stack [relations, heads and padding, columns]: weights of scores of sources."""
    stacks = _stacks([each.weight for each in relations])
    vectors = torch.stack([each.source_vector for each in relations])
    parts = torch.split(vectors, [len(stack) for stack in stacks])
    return [_padded(_score_weights(stack, part)) for stack, part in zip(stacks, parts, strict=True)]


def _destination_scores(relations: Sequence[AttentionRelation], chosen: list[int]) -> Tensor:
    """Returns [heads of the first relation, of the second, ..., padding; columns]."""
    weights = torch.stack([relations[i].destination_weight for i in chosen])
    vectors = torch.stack([relations[i].destination_vector for i in chosen])
    return _padded(_score_weights(weights, vectors).flatten(0, 1))


def _score_weights(weights: Tensor, vectors: Tensor) -> Tensor:
    """Returns [relations, heads, columns]: the weight of each column in the score of each head."""
    return torch.einsum("rhdk,rhd->rhk", weights.view(*vectors.shape, -1), vectors)


def _padded(weights: Tensor) -> Tensor:
    return F.pad(weights, (0, 0, 0, -weights.shape[-2] % _COLUMNS))


class _SumRows(torch.autograd.Function):
    """Adds up the rows of each destination; each row has one destination."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, edges: TypedEdges) -> Tensor:
        ctx.owners = edges.owners
        return edges.sums().spmm(rows.contiguous(), None, "copy_u")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, ctx.owners), None
