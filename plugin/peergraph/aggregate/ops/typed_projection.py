"""Features and scores of typed attention: products of the rows that edges read, in pieces.

All relations of a layer are one function of autograd, because a typed layer would else spend more
time on small operations of the host than a GPU spends on its products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

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


class AttentionRelation(NamedTuple):
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

    def of_destinations(self, scores: Tensor) -> dict[int, Tensor]:
        """Returns the scores of the destinations of each node type that has any."""
        sizes = self.edges.sizes
        columns = [self.edges.score_places(i) * self.heads for i in range(len(sizes))]
        lengths = [size * count for size, count in zip(sizes, columns, strict=True)]
        parts = enumerate(zip(scores.split_with_sizes(lengths), sizes, columns, strict=True))
        return {i: part.view(size, count) for i, (part, size, count) in parts if size}

    def maps(
        self, weights: Sequence[Tensor], into_weights: Sequence[Tensor], node_types: Iterable[int]
    ) -> list[_Maps]:
        """Returns the maps of sources, and those of destinations of some types, by shape."""
        groups: dict[tuple[int, ...], _Maps] = {}
        for i, weight in enumerate(weights):
            groups.setdefault(tuple(weight.shape), _Maps([], [])).sources.append(i)
        for node_type in node_types:
            shape = tuple(into_weights[self.edges.by_destination[node_type][0]].shape)
            groups.setdefault(shape, _Maps([], [])).node_types.append(node_type)
        return list(groups.values())


class _Maps(NamedTuple):
    """Linear maps whose weights have one shape, so that they are stacked.

    Args:
        sources: positions of relations, whose sources are mapped.
        node_types: the types whose destinations are mapped, by all relations into them.
    """

    sources: list[int]
    node_types: list[int]


class _Projection(Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weights, vectors, into_weights, into_vectors = plan.split(operands)
        edges, heads = plan.edges, plan.heads
        new, count = weights[0].new_empty, edges.column_cuts[-1]
        x = new(count, heads * plan.depth, dtype=plan.dtype)
        padded = -(-heads // FAST_COLUMNS) * FAST_COLUMNS
        left = new(count, padded, dtype=plan.sums)
        of_all = new(edges.num_scores * heads, dtype=plan.sums)
        of_types = plan.of_destinations(of_all)
        low: list[Tensor] = [weights[0]] * len(weights)
        low_scores = list(low)
        transposed: dict[int, Sequence[Tensor]] = {}
        into: dict[int, Tensor] = {}
        for sources, node_types in plan.maps(weights, into_weights, of_types):
            of_maps, of_vectors = [weights[i] for i in sources], [vectors[i] for i in sources]
            counts = [len(sources)]
            for node_type in node_types:
                into_type = edges.by_destination[node_type]
                counts.append(edges.score_places(node_type))
                of_maps += [into_weights[i] for i in into_type]
                of_vectors += [into_vectors[i] for i in into_type]
                if len(into_type) < counts[-1]:  # a place without a score
                    of_maps.append(of_maps[-1])
                    of_vectors.append(torch.zeros_like(of_vectors[-1]))
            stack, attention = torch.stack(of_maps), torch.stack(of_vectors)
            scores = _scores(stack, attention).to(plan.dtype).flatten(0, 1)
            of_sources, *of_types_scores = scores.split_with_sizes([heads * n for n in counts])
            into.update(zip(node_types, of_types_scores, strict=True))
            of_sources = of_sources.view(counts[0], heads, stack.shape[2])
            low_stack, padding = stack[: counts[0]].to(plan.dtype), (0, 0, 0, padded - heads)
            parts = (
                *(low_stack.unbind(), of_sources.unbind()),
                *(low_stack.mT.unbind(), F.pad(of_sources, padding).mT.unbind()),
            )
            for i, *of_source in zip(sources, *parts, strict=True):
                low[i], low_scores[i], transposed[i] = of_source[0], of_source[1], of_source[2:]
        blocks = zip(edges.sources, edges.by_relation(x), edges.by_relation(left), strict=True)
        for i, block in enumerate(blocks):
            weight, score = transposed[i]
            for rows, of_x, of_left in plan.in_pieces(features, plan.sources[i], *block):
                chosen = plan.select(features, plan.sources[i], rows)
                multiply(chosen, weight, of_x)
                multiply(chosen, score, of_left)
        for node_type, of_type in of_types.items():
            for piece in plan.pieces(features, node_type, of_type.shape[0]):
                chosen = plan.select(features, node_type, piece)
                multiply(chosen, into[node_type].t(), of_type[piece])
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
        of_all = grads[2].new_zeros(edges.num_scores, plan.heads)
        of_all.index_copy_(0, edges.score_rows, grads[2])
        of_types = plan.of_destinations(of_all.view(-1).to(plan.dtype))
        of_weights: list[Tensor | None] = [None] * len(weights)
        of_vectors, of_into, of_into_vectors = (list(of_weights) for _ in range(3))
        used_types = [node_type for node_type in of_types if node_type in plan.used]
        for sources, node_types in plan.maps(weights, into_weights, used_types):
            places = [edges.by_destination[i] for i in node_types]
            flat = list(chain.from_iterable(places))
            of_maps = [weights[i] for i in sources] + [into_weights[i] for i in flat]
            of_both = [vectors[i] for i in sources] + [into_vectors[i] for i in flat]
            stack, attention = torch.stack(of_maps), torch.stack(of_both)
            count = len(sources)
            total = torch.empty_like(stack, dtype=plan.sums)
            scores = total.new_empty(len(stack), plan.heads, stack.shape[2])
            of_sources = zip(sources, total[:count].unbind(), scores[:count].unbind(), strict=True)
            for i, of_weight, of_score in of_sources:
                if not is_used[i]:
                    continue
                if blocks[i][0].shape[0] == 0:
                    of_weight.zero_()
                    of_score.zero_()
                of_feature, first = of_features[plan.sources[i]], True
                for rows, of_x, of_left in plan.in_pieces(features, plan.sources[i], *blocks[i]):
                    chosen = plan.select(features, plan.sources[i], rows)
                    add_product_of_columns(of_weight, of_x, chosen, first)
                    add_product_of_columns(of_score, of_left, chosen, first)
                    first = False
                    if of_feature is not None:
                        part = product_of_rows(of_x, ctx.low[i])
                        add_product(part, of_left, ctx.low_scores[i], False)
                        of_feature.index_add_(0, rows, part)
            total[count:].zero_()
            lengths = [len(each) * plan.heads for each in places]
            of_places = scores[count:].flatten(0, 1).split_with_sizes(lengths)
            for node_type, of_place in zip(node_types, of_places, strict=True):
                part = of_types[node_type]
                for piece in plan.pieces(features, node_type, part.shape[0]):
                    chosen = plan.select(features, node_type, piece)
                    columns = part[piece, : of_place.shape[0]]
                    add_product_of_columns(of_place, columns, chosen, piece.start == 0)
                of_feature = of_features[node_type]
                if of_feature is not None:
                    add_product(of_feature[: part.shape[0]], part, ctx.into[node_type], False)
            of_each = iter(zip(*_of_scores(total, scores, stack, attention), strict=True))
            for i, (of_weight, of_vector) in zip(sources, of_each, strict=False):
                of_weights[i], of_vectors[i] = of_weight, of_vector
            for i, (of_weight, of_vector) in zip(flat, of_each, strict=True):
                of_into[i], of_into_vectors[i] = of_weight, of_vector
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


def _scores(stack: Tensor, attention: Tensor) -> Tensor:
    """Returns [maps, heads, columns], by which features give the score of each head: the
    attention vector times the weight.

    Args:
        stack: [maps, heads * depth, columns] weights.
        attention: [maps, ..., heads, depth] vectors.
    """
    count, (heads, depth) = len(stack), attention.shape[-2:]
    of_heads = stack.view(count * heads, depth, -1)
    return torch.bmm(attention.view(-1, 1, depth), of_heads).view(count, heads, -1)


def _of_scores(
    total: Tensor, scores: Tensor, stack: Tensor, attention: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the gradients of weights and vectors, given those of the weights of scores.

    Args:
        total: [maps, heads * depth, columns], to which the weights' gradient is added.
        scores: [maps, heads, columns].
        stack: [maps, heads * depth, columns] weights.
        attention: [maps, ..., heads, depth] vectors.
    """
    count, heads, columns = scores.shape
    by_head = stack.view(count * heads, -1, columns)
    scores = scores.view(count * heads, 1, columns)
    vectors = attention.view(count * heads, -1, 1).to(total.dtype)
    total.view(by_head.shape).baddbmm_(vectors, scores)
    of_attention = torch.bmm(by_head.to(scores.dtype), scores.transpose(1, 2))
    of_attention = of_attention.view(attention.shape)
    return total.to(stack.dtype).unbind(), of_attention.to(stack.dtype).unbind()
