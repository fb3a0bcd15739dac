"""Attention along each relation, and attention over the relations of a node (Wang et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.aggregate.ops.edge_softmax import edge_softmax
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.spmm import Sum, spmm
from peergraph.aggregate.sparse.index_tensors import on_device
from peergraph.aggregate.sparse.typed_edges import Relation
from peergraph.aggregate.sparse.typed_pairs import ApartPairs


def path_attention(
    pairs: ApartPairs,
    relations: Sequence[Relation],
    features: Sequence[Tensor],
    source_vectors: Sequence[Tensor],
    destination_vectors: Sequence[Tensor],
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
) -> Tensor:
    """Sums the features of sources by graph attention, apart for each relation.

    Features are those of all relations, so that no relation has a copy of them. An edge has a
    number for each head in memory.

    Args:
        pairs: the edges.
        relations: those that `pairs` was made of.
        features: [rows, heads, depth] of each node type.
        source_vectors, destination_vectors: for each relation [heads, depth] attention vectors.
        negative_slope: of leaky_relu.
        dropout: probability of dropping a weight.

    Returns:
        [pairs, heads * depth], relation after relation, for each destination with edges.

    Synchronises no GPU. Differentiable once.
    """
    left: list[Tensor] = [features[0]] * len(relations)
    right = list(left)
    rows = []
    for node_type, x in enumerate(features):
        into_left = [i for i, each in enumerate(relations) if each.sources == node_type]
        into_right = [i for i, each in enumerate(relations) if each.destinations == node_type]
        vectors = [source_vectors[i] for i in into_left]
        vectors += [destination_vectors[i] for i in into_right]
        chosen, *of_nodes = node_scores(x, *(each.to(x.dtype) for each in vectors))
        for places, i, of_relation in zip(
            [left] * len(into_left) + [right] * len(into_right),
            into_left + into_right,
            of_nodes,
            strict=True,
        ):
            places[i] = of_relation
        columns = pairs.chosen[node_type]
        if isinstance(columns, Tensor):
            chosen = chosen.index_select(0, columns)
        if chosen.shape[0]:
            rows.append(chosen)
    x = torch.cat(rows) if rows else features[0][:0]
    score_dtype = sum_dtype(x.dtype)
    of_pairs = torch.cat(right).index_select(0, pairs.places)
    scores = sddmm(pairs.scores, "add", torch.cat(left).to(score_dtype), of_pairs.to(score_dtype))
    weights = edge_softmax(pairs.matrix, F.leaky_relu(scores, negative_slope))
    if dropout:
        weights = F.dropout(weights, dropout)
    return spmm(pairs.matrix, Sum("mul", "sum", x, weights.to(x.dtype).unsqueeze(-1))).flatten(1)


def semantic_attention(
    pairs: ApartPairs, rows: Tensor, count: int, keys: Callable[[Tensor], Tensor], query: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums the rows of each destination's relations, weighted by one number for each relation.

    The number is the softmax over relations of the mean of ``tanh(keys(row)) . query`` over all
    destinations; rows of destinations without edges are zeros, and are counted once.

    Args:
        pairs: the edges of relations into one node type.
        rows: [pairs, columns].
        count: the number of destinations.
        keys: a function of each row, [n, columns] to [n, columns].
        query: [..., columns].

    Returns:
        [destinations up to the last one with edges, columns], and [relations] weights.
    """
    values = torch.tanh(keys(torch.cat([rows, rows.new_zeros(1, rows.shape[1])])))
    score_dtype = sum_dtype(values.dtype)
    lengths = [end - first for first, end in pairwise(pairs.row_cuts)]
    *parts, of_zeros = torch.split(values, [*lengths, 1])
    means = [
        (part.sum(0, dtype=score_dtype) + (count - len(part)) * of_zeros[0].to(score_dtype)) / count
        for part in parts
    ]
    weights = torch.softmax((query * torch.stack(means)).sum(-1), 0)
    of_pairs = weights.to(rows.dtype).repeat_interleave(
        on_device(lengths, rows.device), output_size=len(rows)
    )
    of_pairs = of_pairs.index_select(0, pairs.sums.indices)
    return spmm(pairs.sums, Sum("mul", "sum", rows, of_pairs.unsqueeze(-1))), weights
