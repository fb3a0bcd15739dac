"""Attention by products of queries and keys, over all relations of a typed layer (Hu et al. 2020).

The maps of a relation are small matrices for each head. They multiply queries before scores are
computed, and sums of values after that: for each pair of a destination and a relation, of which
there are far fewer than sources in a mini-batch. Keys and values are made once for each source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.typed_rows import RowReader, add_product, split_encoded
from peergraph.aggregate.sparse.typed_pairs import JointPairs
from peergraph.memory import EncodedRows


@dataclass(frozen=True)
class DotAttention:
    """The parameters of attention over several relations.

    Args:
        weights: for each node type [3 * heads * depth, columns]: of keys, queries and values.
        biases: for each node type [3 * heads * depth].
        key_maps, value_maps: [heads, maps, depth, depth], by which rows of keys and values are
            multiplied.
        maps: the map of each relation.
        priors: for each relation [..., heads], by which scores are multiplied.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    key_maps: Tensor
    value_maps: Tensor
    maps: Sequence[int]
    priors: Sequence[Tensor]


def typed_dot_attention(
    pairs: JointPairs,
    features: Sequence[Tensor | EncodedRows],
    parameters: DotAttention,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Sums values by the softmax of scores over the edges of all relations of a destination.

    A score is ``prior * (query . (key K)) / sqrt(depth)``, a message ``value V``; K and V are the
    maps of the edge's relation. No message is written, and of an edge only a number for each head.
    The backward pass reads the rows of features again, so that nothing of their size is kept.

    Args:
        pairs: the edges; node types as in `features`.
        features: [rows, columns] of each node type, or encoded rows.
        parameters: of the node types and of the relations of `pairs`.
        dtype: of products and sums; features of another one are converted as they are read.

    Returns:
        For each node type [pairs.sizes, heads * depth] of `dtype`. Later destinations have no
        edges, so that their sums are zeros.

    Synchronises no GPU. Differentiable once; all parameters but priors of other relations have
    gradients, zeros where no edge uses them.
    """
    encoded, tensors = split_encoded(features, dtype)
    heads, depth = parameters.key_maps.shape[::2]
    plan = _Plan(encoded, dtype, pairs, heads, depth, list(parameters.maps))
    out: Tensor = _DotAttention.apply(  # type: ignore[no-untyped-call]
        plan,
        *tensors,
        *parameters.weights,
        *parameters.biases,
        parameters.key_maps,
        parameters.value_maps,
        *parameters.priors,
    )
    return torch.split(out, pairs.sizes)


@dataclass(frozen=True)
class _Plan(RowReader):
    """What is multiplied, and the sizes of heads."""

    pairs: JointPairs
    heads: int
    depth: int
    maps: list[int]

    @property
    def width(self) -> int:
        """The columns of keys, and of values."""
        return self.heads * self.depth

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Returns features, weights and biases by type, key maps, value maps, and priors."""
        types = len(self.encoded)
        by_type = (operands[i * types : (i + 1) * types] for i in range(3))
        rest = operands[3 * types :]
        return (*by_type, rest[0], rest[1], rest[2:])

    def chosen_maps(self, maps: Tensor) -> Tensor:
        """Returns the maps of the relations, [heads, relations, depth, depth]."""
        if self.maps == list(range(maps.shape[1])):
            return maps
        return maps.index_select(1, torch.tensor(self.maps).to(maps.device))

    def all_maps(self, chosen: Tensor, like: Tensor) -> Tensor:
        """Returns a gradient of all maps, given that of the relations' maps."""
        if self.maps == list(range(like.shape[1])):
            return chosen.to(like.dtype)
        numbers = torch.tensor(self.maps).to(like.device)
        return torch.zeros_like(like).index_add_(1, numbers, chosen.to(like.dtype))

    def columns(self, features: Sequence[Tensor]) -> Iterator[tuple[int, Any, slice]]:
        """Returns the node type, the rows of features and the columns of each piece of them."""
        cuts = pairwise(self.pairs.column_cuts)
        for node_type, (chosen, (first, end)) in enumerate(
            zip(self.pairs.chosen, cuts, strict=True)
        ):
            for piece in self.pieces(features, node_type, end - first):
                rows = chosen[piece] if isinstance(chosen, Tensor) else piece
                yield node_type, rows, slice(first + piece.start, first + piece.stop)

    def destinations(self, features: Sequence[Tensor]) -> Iterator[tuple[int, slice, slice]]:
        """As :meth:`columns`, of the destinations."""
        firsts = accumulate(self.pairs.sizes, initial=0)
        for node_type, (first, size) in enumerate(zip(firsts, self.pairs.sizes, strict=False)):
            for piece in self.pieces(features, node_type, size):
                yield node_type, piece, slice(first + piece.start, first + piece.stop)

    def relations(self, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Returns the rows of the pairs of each relation, as [heads, pairs, depth] views."""
        for first, end in pairwise(self.pairs.row_cuts):
            yield tuple(
                each[first:end].view(end - first, self.heads, self.depth).transpose(0, 1)
                for each in rows
            )

    def map(self, rows: Tensor, maps: Tensor) -> Tensor:
        """Returns rows of pairs multiplied by their relation's maps, by head."""
        out = torch.empty_like(rows)
        for (of_rows, of_out), by_head in zip(
            self.relations(rows, out), maps.unbind(1), strict=True
        ):
            if of_rows.shape[1]:
                torch.bmm(of_rows, by_head, out=of_out)
        return out

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns, for each relation, the sum over pairs of the products of two rows, by head:
        [heads, relations, depth, depth].
        """
        out = left.new_zeros(self.heads, len(self.maps), self.depth, self.depth)
        for i, (of_left, of_right) in enumerate(self.relations(left, right)):
            if of_left.shape[1]:
                torch.bmm(of_left.transpose(1, 2), of_right, out=out[:, i])
        return out

    def scaled(self, key_maps: Tensor, priors: Sequence[Tensor]) -> Tensor:
        """Returns the factor of each head's scores, [heads, relations, 1, 1]."""
        stacked = torch.stack([prior.reshape(-1) for prior in priors], 1)
        return (stacked / math.sqrt(self.depth))[..., None, None].to(key_maps.dtype)


class _DotAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> Tensor:
        features, weights, biases, key_maps, value_maps, priors = plan.split(operands)
        pairs, width = plan.pairs, plan.width
        new = key_maps.new_empty
        low = [each.to(plan.dtype) for each in weights]
        low_biases = [each.to(plan.dtype) for each in biases]
        keys, values = (new(pairs.num_columns, width, dtype=plan.dtype) for _ in range(2))
        for node_type, rows, columns in plan.columns(features):
            x = plan.select(features, node_type, rows)
            of_keys, _, of_values = low[node_type].split(width)
            bias = low_biases[node_type].split(width)
            torch.addmm(bias[0], x, of_keys.t(), out=keys[columns])
            torch.addmm(bias[2], x, of_values.t(), out=values[columns])
        queries = new(sum(pairs.sizes), width, dtype=plan.dtype)
        for node_type, rows, places in plan.destinations(features):
            x = plan.select(features, node_type, rows)
            weight, bias = (each[node_type][width : 2 * width] for each in (low, low_biases))
            torch.addmm(bias, x, weight.t(), out=queries[places])
        factors = plan.scaled(key_maps, priors)
        of_queries = (plan.chosen_maps(key_maps) * factors).to(plan.dtype)
        of_values = plan.chosen_maps(value_maps).to(plan.dtype)
        mapped = plan.map(queries.index_select(0, pairs.owners), of_queries.transpose(2, 3))
        shares = pairs.by_destination.edge_softmax(
            pairs.matrix.sddmm(keys, mapped, "mul", "uv", plan.heads, plan.depth)
        )
        sums = pairs.matrix.spmm(values, shares, "mul")
        out = pairs.sums.spmm(plan.map(sums, of_values), None, "copy_u")
        edges = keys, values, queries, mapped, shares, sums
        ctx.save_for_backward(*operands, *low, of_queries, of_values, *edges)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable("typed attention")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, pairs = ctx.plan, ctx.plan.pairs
        count, types = len(ctx.needs_input_grad) - 1, len(plan.encoded)
        operands, rest = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        features, weights, biases, key_maps, value_maps, priors = plan.split(operands)
        low, (of_queries, of_values, *edges) = rest[:types], rest[types:]
        keys, values, queries, mapped, shares, sums = edges
        by_column = pairs.matrix.transpose()
        of_pairs = grad.contiguous().index_select(0, pairs.owners)
        grad_value_maps = plan.products(sums, of_pairs)
        of_sums = plan.map(of_pairs, of_values.transpose(2, 3))
        of_shares = pairs.matrix.sddmm(values, of_sums, "mul", "uv", plan.heads, plan.depth)
        of_scores = pairs.by_destination.edge_softmax(shares, of_shares)
        grad_values = by_column.spmm(of_sums, shares, "mul")
        grad_keys = by_column.spmm(mapped, of_scores, "mul")
        of_mapped = pairs.matrix.spmm(keys, of_scores, "mul")
        grad_key_maps = plan.products(of_mapped, queries.index_select(0, pairs.owners))
        grad_queries = pairs.sums.spmm(plan.map(of_mapped, of_queries), None, "copy_u")
        by_type = _Gradients(plan, features, weights, biases, ctx.needs_input_grad[1:])
        by_type.add_columns(low, grad_keys, grad_values)
        by_type.add_destinations(low, grad_queries)
        factors = plan.scaled(key_maps, priors)
        grad_key_maps = grad_key_maps.to(key_maps.dtype)
        of_factors = (grad_key_maps * plan.chosen_maps(key_maps)).sum((2, 3)) / math.sqrt(
            plan.depth
        )
        results: list[Tensor | None] = [
            None,
            *by_type.features,
            *by_type.of_parameters(weights, biases),
            plan.all_maps(grad_key_maps * factors, key_maps),
            plan.all_maps(grad_value_maps, value_maps),
            *(
                of_prior.view_as(prior).to(prior.dtype)
                for of_prior, prior in zip(of_factors.unbind(1), priors, strict=True)
            ),
        ]
        return tuple(
            result if needed else None
            for result, needed in zip(results, ctx.needs_input_grad, strict=True)
        )


class _Gradients:
    """Gradients of features, weights and biases, summed piece by piece."""

    def __init__(
        self,
        plan: _Plan,
        features: Sequence[Tensor],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> None:
        self._plan, self._inputs = plan, features
        of_features, self._of_weights, self._of_biases = plan.split(needs)[:3]
        self.features = [
            torch.zeros_like(x) if needed else None
            for x, needed in zip(features, of_features, strict=True)
        ]
        dtype = sum_dtype(plan.dtype)
        self._weights = [torch.zeros_like(each, dtype=dtype) for each in weights]
        self._biases = [torch.zeros_like(each, dtype=dtype) for each in biases]
        self._begun: set[tuple[int, int]] = set()

    def add_columns(self, low: Sequence[Tensor], keys: Tensor, values: Tensor) -> None:
        """Adds the gradients of keys and values."""
        for node_type, rows, columns in self._plan.columns(self._inputs):
            self._add(low, node_type, rows, {0: keys[columns], 2: values[columns]})

    def add_destinations(self, low: Sequence[Tensor], queries: Tensor) -> None:
        """Adds the gradients of queries."""
        for node_type, rows, places in self._plan.destinations(self._inputs):
            self._add(low, node_type, rows, {1: queries[places]})

    def _add(
        self, low: Sequence[Tensor], node_type: int, rows: Any, parts: dict[int, Tensor]
    ) -> None:
        plan, width = self._plan, self._plan.width
        x = None
        if self._of_weights[node_type]:
            x = plan.select(self._inputs, node_type, rows)
        of_feature = self.features[node_type]
        for part, grad in parts.items():
            place = slice(part * width, (part + 1) * width)
            if x is not None:
                is_first = (node_type, part) not in self._begun
                add_product(self._weights[node_type][place], grad.t(), x, is_first)
                self._begun.add((node_type, part))
            if self._of_biases[node_type]:
                bias = self._biases[node_type][place]
                bias += grad.sum(0, dtype=bias.dtype)
            if of_feature is None:
                continue
            if isinstance(rows, slice):
                of_feature[rows].addmm_(grad, low[node_type][place])
            else:
                of_feature.index_add_(0, rows, grad @ low[node_type][place])

    def of_parameters(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Returns the gradients of weights and of biases, in the dtype of each."""
        sums = (*self._weights, *self._biases)
        for parameter, each in zip((*weights, *biases), sums, strict=True):
            yield each.to(parameter.dtype)
