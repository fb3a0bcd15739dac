"""Features and scores of typed attention: products of the rows that edges read, in pieces.

All relations of a layer are one function of autograd, because a typed layer would else spend more
time on small operations of the host than a GPU spends on its products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.product_order import FAST_COLUMNS
from peergraph.aggregate.ops.row_products import (
    add_product,
    add_product_of_columns,
    multiply,
    product_of_rows,
)
from peergraph.aggregate.ops.typed_rows import RowReader, split_encoded
from peergraph.aggregate.sparse.typed_edges import TypedEdges
from peergraph.autograd import Function
from peergraph.memory import EncodedRows


@dataclass(frozen=True)
class AttentionRelation:
    """The parameters of one relation, whose features are multiplied by `weight` and then summed.

    Args:
        source, destination: the positions of the node types among the features.
        weight: [heads * depth, columns of sources].
        source_vector: [..., heads, depth] attention vector of sources.
        destination_weight: [heads * depth, columns of destinations].
        destination_vector: [..., heads, depth] attention vector of destinations.
    """

    source: int
    destination: int
    weight: Tensor
    source_vector: Tensor
    destination_weight: Tensor
    destination_vector: Tensor


def project(
    edges: TypedEdges,
    features: Sequence[Tensor | EncodedRows],
    relations: Sequence[AttentionRelation],
    dtype: torch.dtype,
    used: set[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what attention over the rows and columns of ``edges.matrix`` takes.

    A score takes no product of all heads' columns, since ``(x W) . a = x (W a)``. The backward pass
    selects the rows of features again.

    Args:
        edges, features, relations: as for :func:`peergraph.aggregate.layers.typed_gat`.
        dtype: in which rows are multiplied; features of another one are converted as they are read.
        used: in the backward pass, the node types of destinations with gradients. Parameters of
            relations into others get none, as in torch.

    Returns:
        [columns, heads * depth] features of `dtype`; [columns, heads] scores of sources and [rows,
        heads] scores of destinations, float32, or float64 for float64. Differentiable once.
    """
    heads, depth = relations[0].source_vector.shape[-2:]
    encoded, tensors = split_encoded(features, dtype)
    plan = _Plan(
        encoded,
        dtype,
        edges,
        [each.source for each in relations],
        [each.destination for each in relations],
        heads,
        depth,
        used,
    )
    results: tuple[Tensor, Tensor, Tensor] = _Projection.apply(
        plan,
        *tensors,
        *(each.weight for each in relations),
        *(each.source_vector for each in relations),
        *(each.destination_weight for each in relations),
        *(each.destination_vector for each in relations),
    )
    return results


@dataclass(frozen=True)
class _Plan(RowReader):
    """The arguments of one call that the forward and the backward pass read."""

    edges: TypedEdges
    sources: list[int]
    destinations: list[int]
    heads: int
    depth: int
    used: set[int]

    @property
    def sums(self) -> torch.dtype:
        """The dtype of scores."""
        return sum_dtype(self.dtype)

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Returns features, and weights and vectors of sources and of destinations."""
        count, first = len(self.sources), len(self.encoded)
        cuts = [0, *(first + i * count for i in range(5))]
        return tuple(operands[a:b] for a, b in pairwise(cuts))  # type: ignore[return-value]

    def in_pieces(
        self, features: Sequence[Tensor], feature: int, tensors: tuple[Tensor, ...]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Returns the pieces of tensors that have a row for each row of features that is read."""
        count = tensors[0].shape[0]
        pieces = list(self.pieces(features, feature, count))
        if len(pieces) == 1:
            yield tensors
        else:
            for piece in pieces:
                yield tuple(tensor[piece] for tensor in tensors)

    def of_destinations(self, scores: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Returns the scores of the destinations of each node type that has any."""
        first = 0
        for node_type, size in enumerate(self.edges.sizes):
            columns = self.edges.score_places(node_type) * self.heads
            if size:
                yield node_type, scores[first : first + size * columns].view(size, columns)
            first += size * columns


class _Projection(Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weights, vectors, into_weights, into_vectors = plan.split(operands)
        edges, heads = plan.edges, plan.heads
        new, count = weights[0].new_empty, edges.column_cuts[-1]
        x = new(count, heads * plan.depth, dtype=plan.dtype)
        padded = -(-heads // FAST_COLUMNS) * FAST_COLUMNS
        left = new(count, padded, dtype=plan.sums)
        low: list[Tensor] = [weights[0]] * len(weights)
        low_scores = list(low)
        for group in _same_shapes(weights):
            stack = torch.stack([weights[i] for i in group])
            scores = F.pad(_scores(stack, vectors, group), (0, 0, 0, padded - heads))
            parts = stack.to(plan.dtype).unbind(), scores.to(plan.dtype).unbind()
            for i, weight, score in zip(group, *parts, strict=True):
                low[i], low_scores[i] = weight, score
        blocks = zip(edges.sources, edges.by_relation(x), edges.by_relation(left), strict=True)
        for i, block in enumerate(blocks):
            weight, score = low[i].t(), low_scores[i].t()
            for rows, of_x, of_left in plan.in_pieces(features, plan.sources[i], block):
                chosen = plan.select(features, plan.sources[i], rows)
                multiply(chosen, weight, of_x)
                multiply(chosen, score, of_left)
        of_all = new(edges.num_scores * heads, dtype=plan.sums)
        into: dict[int, Tensor] = {}
        for node_type, of_type in plan.of_destinations(of_all):
            chosen_relations = edges.by_destination[node_type]
            stack = torch.stack([into_weights[i] for i in chosen_relations])
            scores = _scores(stack, into_vectors, chosen_relations).flatten(0, 1)
            scores = F.pad(scores, (0, 0, 0, of_type.shape[1] - scores.shape[0])).to(plan.dtype)
            into[node_type] = scores
            for piece in plan.pieces(features, node_type, of_type.shape[0]):
                multiply(plan.select(features, node_type, piece), scores.t(), of_type[piece])
        right = of_all.view(-1, heads).index_select(0, edges.score_rows)
        ctx.save_for_backward(*operands)
        ctx.plan, ctx.low, ctx.low_scores, ctx.into = plan, low, low_scores, into
        return x, left[:, :heads].contiguous(), right

    @staticmethod
    @once_differentiable("typed attention")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, edges = ctx.plan, ctx.plan.edges
        features, weights, vectors, into_weights, into_vectors = plan.split(ctx.saved_tensors)
        needs = plan.split(ctx.needs_input_grad[1:])
        blocks = list(
            zip(
                edges.sources,
                edges.by_relation(grads[0]),
                edges.by_relation(grads[1].to(plan.dtype)),
                strict=True,
            )
        )
        is_used = [node_type in plan.used for node_type in plan.destinations]
        read = {*plan.used}.union(
            source for source, used in zip(plan.sources, is_used, strict=True) if used
        )
        of_features = [
            torch.zeros_like(x) if need and i in read else None
            for i, (x, need) in enumerate(zip(features, needs[0], strict=True))
        ]
        of_weights: list[Tensor | None] = [None] * len(weights)
        of_vectors, of_into, of_into_vectors = (list(of_weights) for _ in range(3))
        for group in _same_shapes(weights):
            total = _new_sums(weights[group[0]], plan.sums, len(group))
            scores = total.new_empty(len(group), plan.heads, total.shape[2])
            for i, of_weight, of_score in zip(group, total.unbind(), scores.unbind(), strict=True):
                if not is_used[i]:
                    continue
                if blocks[i][0].shape[0] == 0:
                    of_weight.zero_()
                    of_score.zero_()
                of_feature, first = of_features[plan.sources[i]], True
                for rows, of_x, of_left in plan.in_pieces(features, plan.sources[i], blocks[i]):
                    chosen = plan.select(features, plan.sources[i], rows)
                    add_product_of_columns(of_weight, of_x, chosen, first)
                    add_product_of_columns(of_score, of_left, chosen, first)
                    first = False
                    if of_feature is not None:
                        part = product_of_rows(of_x, ctx.low[i])
                        add_product(part, of_left, ctx.low_scores[i][: plan.heads], False)
                        of_feature.index_add_(0, rows, part)
            _of_scores(total, scores, weights, vectors, group, of_weights, of_vectors)
        of_all = grads[2].new_zeros(edges.num_scores, plan.heads)
        of_all.index_copy_(0, edges.score_rows, grads[2])
        for node_type, part in plan.of_destinations(of_all.view(-1).to(plan.dtype)):
            if node_type not in plan.used:
                continue
            chosen_relations = edges.by_destination[node_type]
            used = len(chosen_relations) * plan.heads
            columns = into_weights[chosen_relations[0]].shape[1]
            scores = of_all.new_empty(used, columns)
            for piece in plan.pieces(features, node_type, part.shape[0]):
                chosen = plan.select(features, node_type, piece)
                add_product_of_columns(scores, part[piece, :used], chosen, piece.start == 0)
            of_feature = of_features[node_type]
            if of_feature is not None:
                add_product(of_feature[: part.shape[0]], part, ctx.into[node_type], False)
            total = _new_sums(
                into_weights[chosen_relations[0]], plan.sums, len(chosen_relations)
            ).zero_()
            _of_scores(
                total,
                scores.view(len(chosen_relations), plan.heads, columns),
                into_weights,
                into_vectors,
                chosen_relations,
                of_into,
                of_into_vectors,
            )
        results: list[Tensor | None] = [None, *of_features]
        by_relation = zip(
            (weights, vectors, into_weights, into_vectors),
            (of_weights, of_vectors, of_into, of_into_vectors),
            strict=True,
        )
        for parameters, gradients in by_relation:
            for parameter, gradient, is_in_loss in zip(parameters, gradients, is_used, strict=True):
                # As of a sum over no edges: of a type into which no relation has any.
                is_zero = is_in_loss and gradient is None
                results.append(torch.zeros_like(parameter) if is_zero else gradient)
                if not is_in_loss:
                    results[-1] = None
        return tuple(
            result if need else None
            for result, need in zip(results, ctx.needs_input_grad, strict=True)
        )


def _same_shapes(weights: Sequence[Tensor]) -> list[list[int]]:
    """Returns the positions of weights by their shape."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, weight in enumerate(weights):
        groups.setdefault(tuple(weight.shape), []).append(i)
    return list(groups.values())


def _scores(stack: Tensor, vectors: Sequence[Tensor], group: list[int]) -> Tensor:
    """Returns [relations, heads, columns]: the weight of each column in the score of each head."""
    attention = torch.stack([vectors[i] for i in group])
    heads, depth = attention.shape[-2:]
    of_heads = stack.view(len(group) * heads, depth, -1)
    return torch.bmm(attention.view(-1, 1, depth), of_heads).view(len(group), heads, -1)


def _of_scores(
    total: Tensor,
    scores: Tensor,
    weights: Sequence[Tensor],
    vectors: Sequence[Tensor],
    group: list[int],
    of_weights: list[Tensor | None],
    of_vectors: list[Tensor | None],
) -> None:
    """Writes the gradients of weights and vectors, given those of the weights of scores.

    Args:
        total: [relations, heads * depth, columns], to which the weights' gradient is added.
        scores: [relations, heads, columns].
    """
    count, heads, columns = scores.shape
    attention = torch.stack([vectors[i] for i in group]).view(count * heads, -1, 1)
    stack = torch.stack([weights[i] for i in group]).view(count * heads, -1, columns)
    scores = scores.view(count * heads, 1, columns)
    total.view(stack.shape).baddbmm_(attention.to(total.dtype), scores)
    of_attention = torch.bmm(stack.to(scores.dtype), scores.transpose(1, 2))
    of_attention = of_attention.view(count, *vectors[0].shape)
    parts = total.to(stack.dtype).unbind(), of_attention.to(stack.dtype).unbind()
    for i, of_weight, of_vector in zip(group, *parts, strict=True):
        of_weights[i], of_vectors[i] = of_weight, of_vector


def _new_sums(weight: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    return weight.new_empty(count, *weight.shape, dtype=dtype)
