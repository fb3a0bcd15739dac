"""Graph attention over all relations of a typed layer at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.attention import AttentionSum, attention
from peergraph.aggregate.ops.edge_softmax import edge_softmax
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.spmm import Sum, spmm
from peergraph.aggregate.ops.typed_products import Block, Product, multiply_blocks
from peergraph.aggregate.ops.typed_projection import AttentionRelation, project
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.typed_edges import TypedEdges
from peergraph.aggregate.sparse.typed_pairs import BlockPairs
from peergraph.memory import EncodedRows


class DynamicRelation(NamedTuple):
    """The parameters of one relation of GATv2.

    Args:
        source, destination: the positions of the node types among the features.
        weight: [heads * depth, columns of sources].
        destination_weight: [heads * depth, columns of destinations].
        vector: [..., heads, depth] attention vector.
        bias, destination_bias: [heads * depth] of either product, or None in all relations.
    """

    source: int
    destination: int
    weight: Tensor
    destination_weight: Tensor
    vector: Tensor
    bias: Tensor | None = None
    destination_bias: Tensor | None = None


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
    places = edges.owners if added else edges.score_rows
    lengths = edges.sizes
    if not added:
        of_types = enumerate(edges.sizes)
        lengths = [size * edges.score_places(node_type) for node_type, size in of_types]
    sums = edges.sums if added else None
    by_type: tuple[Tensor, ...] = _Outputs.apply(out.flatten(1), sums, places, lengths, used)  # type: ignore[no-untyped-call]
    results = list(by_type)
    if not added:
        results = []
        for i, relation in enumerate(relations):
            node_type = relation.destination
            place, count = edges.by_destination[node_type].index(i), edges.score_places(node_type)
            results.append(by_type[node_type].view(-1, count, heads * depth)[:, place])
    return results if concat else [each.view(-1, heads, depth) for each in results]


def typed_gatv2(
    pairs: BlockPairs,
    features: Sequence[Tensor | EncodedRows],
    relations: Sequence[DynamicRelation],
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
    added: bool = True,
    concat: bool = False,
) -> list[Tensor]:
    """Sums GATv2 (Brody et al. 2022) over all relations of a layer.

    As :func:`typed_gat`, but a score depends on the products of both ends, so that destinations
    that have edges in a relation are multiplied in full width, too. With `dropout` the sums of both
    ends of each edge are written.

    Args:
        pairs: the edges, on the CPU.
        features, negative_slope, dropout, dtype, added, concat: as for :func:`typed_gat`.
        relations: parameters of each relation of `pairs`, with the same heads and depth.

    Returns:
        As :func:`typed_gat`.

    Differentiable once.

    Raises:
        NotImplementedError: the edges are on a GPU.
    """
    heads, depth = relations[0].vector.shape[-2:]
    dtype = features[relations[0].source].dtype if dtype is None else dtype
    used: set[int] = set()
    outputs = [each.destination if added else i for i, each in enumerate(relations)]
    weights = [each.weight for each in relations] + [each.destination_weight for each in relations]
    biases = [each.bias for each in relations] + [each.destination_bias for each in relations]
    x, right = (
        rows.view(-1, heads, depth)
        for rows in multiply_blocks(
            _blocks(pairs, relations, outputs),
            features,
            weights,
            [bias for bias in biases if bias is not None],
            dtype,
            used=used,
        )
    )
    vectors: Tensor = _StackedVectors.apply(outputs, used, *(each.vector for each in relations))  # type: ignore[no-untyped-call]
    vectors = vectors.view(-1, heads, depth).to(sum_dtype(dtype))
    if dropout == 0:
        of = AttentionSum(x, None, right, vectors, negative_slope)
        out = attention(pairs.matrix, of, pairs.cuts)
    else:
        of_edges = F.leaky_relu(sddmm(pairs.matrix, "add", x, right), negative_slope)
        parts = zip(of_edges.split_with_sizes(pairs.num_edges), vectors, strict=True)
        scores = torch.cat([(part * vector).sum(-1) for part, vector in parts])
        out = _weighted_sum(pairs.matrix, x, scores, dropout)
    sums = pairs.sums if added else None
    places = pairs.owners if added else pairs.row_places
    lengths = pairs.sizes if added else pairs.places
    results: tuple[Tensor, ...] = _Outputs.apply(out.flatten(1), sums, places, lengths, used)  # type: ignore[no-untyped-call]
    return [each if concat else each.view(-1, heads, depth) for each in results]


def _blocks(
    pairs: BlockPairs, relations: Sequence[DynamicRelation], outputs: Sequence[int]
) -> list[Block]:
    """Returns the sources of each relation, whose products are result 0, and its destinations."""
    sides = (
        (pairs.column_cuts, pairs.chosen, [each.source for each in relations]),
        (pairs.row_cuts, pairs.rows, [each.destination for each in relations]),
    )
    return [
        Block(feature, ids, end - first, (Product(side, side * len(relations) + i),), outputs[i])
        for side, (cuts, rows, features) in enumerate(sides)
        for i, (feature, ids, (first, end)) in enumerate(
            zip(features, rows, pairwise(cuts), strict=True)
        )
    ]


def _attend(
    matrix: EdgeMatrix, x: Tensor, left: Tensor, right: Tensor, slope: float, dropout: float
) -> Tensor:
    if dropout == 0:
        return attention(matrix, AttentionSum(x, left, right, negative_slope=slope))
    scores = F.leaky_relu(sddmm(matrix, "add", left, right), slope)
    return _weighted_sum(matrix, x, scores, dropout)


def _weighted_sum(matrix: EdgeMatrix, x: Tensor, scores: Tensor, dropout: float) -> Tensor:
    """Returns the sums of rows by the softmax of the edges' scores, after dropout."""
    weights = F.dropout(edge_softmax(matrix, scores), dropout).to(x.dtype)
    return spmm(matrix, Sum("mul", "sum", x, weights.unsqueeze(-1)))


class _Outputs(torch.autograd.Function):
    """The outputs of the layer: sums of rows, or the rows at their places and zeros elsewhere."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sums: EdgeMatrix | None,
        places: Tensor,
        lengths: list[int],
        used: set[int],
    ) -> tuple[Tensor, ...]:
        ctx.places, ctx.lengths, ctx.used, ctx.columns = places, lengths, used, rows.shape[1]
        ctx.set_materialize_grads(False)
        if sums is not None:
            total = sums.sum_messages(rows.contiguous(), None, "copy_u")
        else:
            total = rows.new_zeros(sum(lengths), rows.shape[1])
            total.index_copy_(0, places, rows)
        return torch.split(total, lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Notes which outputs have a gradient: parameters that others alone use get none, as in
        torch.
        """
        ctx.used.clear()
        ctx.used.update(i for i, grad in enumerate(grads) if grad is not None)
        first = next((grad for grad in grads if grad is not None), None)
        if first is None:
            return (None,) * 5
        parts = [
            first.new_zeros(length, ctx.columns) if grad is None else grad
            for length, grad in zip(ctx.lengths, grads, strict=True)
        ]
        return torch.cat(parts).index_select(0, ctx.places), None, None, None, None


class _StackedVectors(torch.autograd.Function):
    """The attention vectors of all relations as one tensor. Those of relations whose output has no
    gradient get none.
    """

    @staticmethod
    def forward(ctx: Any, outputs: list[int], used: set[int], *vectors: Tensor) -> Tensor:
        ctx.outputs, ctx.used = outputs, used
        return torch.stack(vectors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = zip(ctx.outputs, grad.unbind(), strict=True)
        return None, None, *(part if output in ctx.used else None for output, part in parts)
