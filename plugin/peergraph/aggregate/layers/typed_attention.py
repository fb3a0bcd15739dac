"""Graph attention over all relations of a typed layer at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    selections = [
        Selection(relation.source, sources)
        for relation, sources in zip(relations, edges.sources, strict=True)
    ]
    weights = [relation.weight.t().to(dtype) for relation in relations]
    scores = [
        _padded(_score_weight(each.weight, each.source_vector)).to(dtype) for each in relations
    ]
    products = [(i, i) for i in range(len(relations))]
    outputs = [products, [(i, len(weights) + i) for i in range(len(scores))]]
    weights += scores
    into = _relations_by_destination(relations, edges)
    for node_type, chosen in into.items():
        by_relation = [
            _score_weight(relations[i].destination_weight, relations[i].destination_vector)
            for i in chosen
        ]
        weights.append(_padded(torch.cat(by_relation, 1)).to(dtype))
        outputs.append([(len(selections), len(weights) - 1)])
        selections.append(Selection(node_type, edges.sizes[node_type]))
    x, left, *right = row_products(features, selections, weights, outputs, dtype)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    of_rows = [
        _scores_of_rows(scores, edges, node_type, chosen, heads)
        for scores, (node_type, chosen) in zip(right, into.items(), strict=True)
    ]
    out = attention(
        edges.matrix,
        x.view(-1, heads, depth),
        left[:, :heads].to(sums),
        torch.cat(of_rows).to(sums),
        negative_slope=negative_slope,
    )
    summed: Tensor = _SumRows.apply(out.flatten(1), edges)  # type: ignore[no-untyped-call]
    return [each.view(-1, heads, depth) for each in torch.split(summed, edges.sizes)]


def _relations_by_destination(
    relations: Sequence[AttentionRelation], edges: TypedEdges
) -> dict[int, list[int]]:
    """Returns the relations into each node type that has edges, in the order of the rows."""
    into: dict[int, list[int]] = {}
    for node_type, (first, last) in enumerate(pairwise(edges.row_cuts)):
        chosen = [i for i, each in enumerate(relations) if each.destination == node_type]
        if first < last:
            into[node_type] = chosen
    return into


def _score_weight(weight: Tensor, vector: Tensor) -> Tensor:
    """Returns [columns, heads]: the weight of each column in the score of each head."""
    heads, depth = vector.shape
    return torch.einsum("hdk,hd->kh", weight.view(heads, depth, -1), vector)


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, -weight.shape[1] % _COLUMNS))


def _scores_of_rows(
    scores: Tensor, edges: TypedEdges, node_type: int, chosen: list[int], heads: int
) -> Tensor:
    """Returns the score of each row of a node type, from those of all of its destinations.

    Args:
        scores: [destinations, heads of the first relation, of the second, ..., padding].
        chosen: the relations, in the order of the columns.
    """
    first, last = edges.row_cuts[node_type : node_type + 2]
    device = scores.device
    places = torch.zeros(len(edges.sources), dtype=torch.int64)
    places[chosen] = torch.arange(len(chosen))
    place = places.to(device)[edges.relations[first:last]]
    by_relation = scores[:, : len(chosen) * heads].reshape(-1, heads)
    return by_relation.index_select(0, edges.destinations[node_type] * len(chosen) + place)


class _SumRows(torch.autograd.Function):
    """Adds up the rows of each destination; each row has one destination."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, edges: TypedEdges) -> Tensor:
        matrix, ctx.owners = edges.sums()
        return matrix.spmm(rows.contiguous(), None, "copy_u")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, ctx.owners), None
