"""Attention by products of queries and keys, over all relations of a typed layer (Hu et al. 2020).

The maps of a relation are small matrices for each head. They multiply queries before scores are
computed, and sums of values after that: for each pair of a destination and a relation, of which
there are far fewer than sources in a mini-batch. Keys and values are those of all relations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.edge_softmax import edge_softmax
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.sparse.index_tensors import on_device
from peergraph.aggregate.sparse.typed_pairs import JointPairs


@dataclass(frozen=True)
class RelationMaps:
    """The parameters of relations in attention by products.

    Args:
        keys, values: [heads, maps, depth, depth], by which rows of keys and values are multiplied.
        numbers: the map of each relation.
        priors: for each relation [..., heads], by which scores are multiplied.
    """

    keys: Tensor
    values: Tensor
    numbers: Sequence[int]
    priors: Sequence[Tensor]


def typed_dot_attention(
    pairs: JointPairs, keys: Tensor, values: Tensor, queries: Tensor, maps: RelationMaps
) -> tuple[Tensor, ...]:
    """Sums values by the softmax of scores over the edges of all relations of a destination.

    A score is ``prior * (query . (key K)) / sqrt(depth)``, a message ``value V``; K and V are the
    maps of the edge's relation. No message is written, and of an edge only a number for each head.

    Args:
        pairs: the edges.
        keys, values: [columns of pairs.matrix, heads * depth].
        queries: [n, heads * depth], of the first ``pairs.sizes`` nodes of each type.
        maps: of the relations of `pairs`.

    Returns:
        For each node type [pairs.sizes, heads * depth] of the dtype of `keys`. Later destinations
        have no edges, so that their sums are zeros.

    Synchronises no GPU. Differentiable once; maps that no relation has get gradients that are
    zeros.
    """
    heads, depth = maps.keys.shape[::2]
    plan = _Plan(pairs, heads, depth, list(maps.numbers))
    out: Tensor = _DotAttention.apply(  # type: ignore[no-untyped-call]
        plan, keys, values, queries, maps.keys, maps.values, *maps.priors
    )
    return torch.split(out, pairs.sizes)


@dataclass(frozen=True)
class _Plan:
    """The edges, the sizes of heads, and the map of each relation."""

    pairs: JointPairs
    heads: int
    depth: int
    numbers: list[int]

    def chosen_maps(self, maps: Tensor) -> Tensor:
        """Returns the maps of the relations, [heads, relations, depth, depth]."""
        if self.numbers == list(range(maps.shape[1])):
            return maps
        return maps.index_select(1, on_device(self.numbers, maps.device))

    def all_maps(self, chosen: Tensor, like: Tensor) -> Tensor:
        """Returns a gradient of all maps, given that of the relations' maps."""
        if self.numbers == list(range(like.shape[1])):
            return chosen.to(like.dtype)
        numbers = on_device(self.numbers, like.device)
        return torch.zeros_like(like).index_add_(1, numbers, chosen.to(like.dtype))

    def by_relation(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns the rows of the pairs of each relation, as [heads, pairs, depth] views."""
        lengths = [end - first for first, end in pairwise(self.pairs.row_cuts)]
        by_head = rows.view(-1, self.heads, self.depth).transpose(0, 1)
        return by_head.split_with_sizes(lengths, 1)

    def map(self, rows: Tensor, maps: Tensor) -> Tensor:
        """Multiplies each head of each row by the matrix of the row's relation."""
        out = torch.empty_like(rows)
        parts = self.by_relation(rows), maps.unbind(1), self.by_relation(out)
        for of_rows, by_head, of_out in zip(*parts, strict=True):
            if of_rows.shape[1]:
                torch.bmm(of_rows, by_head, out=of_out)
        return out

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns, for each relation, the sum over pairs of the products of two rows, by head:
        [heads, relations, depth, depth].
        """
        out = left.new_zeros(self.heads, len(self.numbers), self.depth, self.depth)
        parts = self.by_relation(left), self.by_relation(right), out.unbind(1)
        for of_left, of_right, of_out in zip(*parts, strict=True):
            if of_left.shape[1]:
                torch.bmm(of_left.mT, of_right, out=of_out)
        return out

    def scaled(self, key_maps: Tensor, priors: Sequence[Tensor]) -> Tensor:
        """Returns the factor of each head's scores, [heads, relations, 1, 1]."""
        stacked = torch.stack(list(priors)).view(len(priors), self.heads).t()
        return (stacked / math.sqrt(self.depth))[..., None, None].to(key_maps.dtype)


class _DotAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        key_maps: Tensor,
        value_maps: Tensor,
        *priors: Tensor,
    ) -> Tensor:
        pairs, dtype = plan.pairs, keys.dtype
        of_queries = plan.chosen_maps(key_maps) * plan.scaled(key_maps, priors)
        of_queries, of_values = of_queries.to(dtype), plan.chosen_maps(value_maps).to(dtype)
        mapped = plan.map(queries.index_select(0, pairs.owners), of_queries.transpose(2, 3))
        by_row, shape = pairs.matrix.tensors, (plan.heads, plan.depth)
        scores = sddmm(keys, mapped, by_row, "mul", "uv", *shape)
        shares = edge_softmax(scores, None, pairs.by_destination.tensors)
        sums = pairs.matrix.sum_messages(values, shares, "mul")
        out = pairs.sums.sum_messages(plan.map(sums, of_values), None, "copy_u")
        intermediates = mapped, shares, sums, of_queries, of_values
        ctx.save_for_backward(*intermediates, keys, values, queries, key_maps, value_maps, *priors)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable("typed attention")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, pairs = ctx.plan, ctx.plan.pairs
        mapped, shares, sums, of_queries, of_values, *operands = ctx.saved_tensors
        keys, values, queries, key_maps, value_maps, *priors = operands
        by_column = pairs.matrix.transpose()
        of_pairs = grad.contiguous().index_select(0, pairs.owners)
        grad_value_maps = plan.products(sums, of_pairs)
        of_sums = plan.map(of_pairs, of_values.transpose(2, 3))
        of_shares = sddmm(
            values, of_sums, pairs.matrix.tensors, "mul", "uv", plan.heads, plan.depth
        )
        of_scores = edge_softmax(shares, of_shares, pairs.by_destination.tensors)
        grad_values = by_column.sum_messages(of_sums, shares, "mul")
        grad_keys = by_column.sum_messages(mapped, of_scores, "mul")
        of_mapped = pairs.matrix.sum_messages(keys, of_scores, "mul")
        grad_key_maps = plan.products(of_mapped, queries.index_select(0, pairs.owners))
        grad_key_maps = grad_key_maps.to(key_maps.dtype)
        grad_queries = pairs.sums.sum_messages(plan.map(of_mapped, of_queries), None, "copy_u")
        of_factors = (grad_key_maps * plan.chosen_maps(key_maps)).sum((2, 3))
        # Contiguous for each relation: autograd would copy the columns of a transposed matrix.
        of_priors = (of_factors.t() / math.sqrt(plan.depth)).contiguous()
        of_priors = of_priors.to(priors[0].dtype).view(len(priors), *priors[0].shape)
        results = [
            grad_keys,
            grad_values,
            grad_queries,
            plan.all_maps(grad_key_maps * plan.scaled(key_maps, priors), key_maps),
            plan.all_maps(grad_value_maps, value_maps),
            *of_priors.unbind(),
        ]
        return None, *(
            result if need else None
            for result, need in zip(results, ctx.needs_input_grad[1:], strict=True)
        )
