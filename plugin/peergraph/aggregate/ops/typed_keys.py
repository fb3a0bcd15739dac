"""Keys, values and queries of typed attention: products of the rows that edges read, in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.row_products import (
    add_product,
    add_product_of_columns,
    multiply,
    product_of_rows,
)
from peergraph.aggregate.ops.typed_rows import RowReader, split_encoded
from peergraph.aggregate.sparse.typed_pairs import TypedPairs
from peergraph.memory import EncodedRows


def typed_keys(
    pairs: TypedPairs,
    features: Sequence[Tensor | EncodedRows],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what :func:`typed_dot_attention` takes, made by a linear map of each node type.

    The backward pass reads the rows of features again, so that nothing of their size is kept.

    Args:
        pairs: the edges; node types as in `features`.
        features: [rows, columns] of each node type, or encoded rows.
        weights: for each node type [3 * width, columns]: of keys, queries and values.
        biases: for each node type [3 * width].
        dtype: of the products; features of another one are converted as they are read.

    Returns:
        Keys and values of the columns of ``pairs.matrix``, and queries of the first ``pairs.sizes``
        nodes of each type, [n, width] of `dtype` each.

    Synchronises no GPU. Differentiable once. All weights have gradients, zeros where no row is
    read.
    """
    encoded, tensors = split_encoded(features, dtype)
    results: tuple[Tensor, Tensor, Tensor] = _TypedKeys.apply(  # type: ignore[no-untyped-call]
        _Plan(encoded, dtype, pairs), *tensors, *weights, *biases
    )
    return results


@dataclass(frozen=True)
class _Plan(RowReader):
    """The arguments of one call that the forward and the backward pass read."""

    pairs: TypedPairs

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Returns features, weights and biases."""
        types = len(self.encoded)
        return operands[:types], operands[types : 2 * types], operands[2 * types :]

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


class _TypedKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weights, biases = plan.split(operands)
        pairs, width = plan.pairs, weights[0].shape[0] // 3
        low = [each.to(plan.dtype) for each in weights]
        low_biases = [each.to(plan.dtype) for each in biases]
        counts = pairs.num_columns, pairs.num_columns, sum(pairs.sizes)
        keys, values, queries = (low[0].new_empty(count, width) for count in counts)
        for node_type, rows, columns in plan.columns(features):
            x = plan.select(features, node_type, rows)
            of_keys, _, of_values = low[node_type].split(width)
            bias = low_biases[node_type].split(width)
            multiply(x, of_keys.t(), keys[columns], bias[0])
            multiply(x, of_values.t(), values[columns], bias[2])
        for node_type, rows, places in plan.destinations(features):
            x = plan.select(features, node_type, rows)
            weight, bias = (each[node_type][width : 2 * width] for each in (low, low_biases))
            multiply(x, weight.t(), queries[places], bias)
        ctx.save_for_backward(*operands, *low)
        ctx.plan = plan
        return keys, values, queries

    @staticmethod
    @once_differentiable("typed attention")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, len(ctx.needs_input_grad) - 1
        operands, low = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        keys, values, queries = grads
        sums = _Gradients(plan, operands, low, ctx.needs_input_grad[1:])
        for node_type, rows, columns in plan.columns(sums.inputs):
            sums.add(node_type, rows, {0: keys[columns], 2: values[columns]})
        for node_type, rows, places in plan.destinations(sums.inputs):
            sums.add(node_type, rows, {1: queries[places]})
        return None, *sums.results(operands)


class _Gradients:
    """Gradients of features, weights and biases, summed piece by piece."""

    def __init__(
        self,
        plan: _Plan,
        operands: Sequence[Tensor],
        low: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> None:
        self._plan, self._low, self._needs = plan, low, needs
        self.inputs, weights, biases = plan.split(operands)
        of_features, self._of_weights, self._of_biases = plan.split(needs)
        self._features = [
            torch.zeros_like(x) if need else None
            for x, need in zip(self.inputs, of_features, strict=True)
        ]
        dtype = sum_dtype(plan.dtype)
        self._weights = [torch.zeros_like(each, dtype=dtype) for each in weights]
        self._biases = [torch.zeros_like(each, dtype=dtype) for each in biases]
        self._begun: set[tuple[int, int]] = set()

    def add(self, node_type: int, rows: Any, parts: dict[int, Tensor]) -> None:
        """Adds the gradients that come from one piece of rows.

        Args:
            rows: the rows, as :meth:`RowReader.select` takes them.
            parts: by third of the weight: the gradients.
        """
        x = None
        if self._of_weights[node_type]:
            x = self._plan.select(self.inputs, node_type, rows)
        of_feature = self._features[node_type]
        for part, grad in parts.items():
            width = grad.shape[1]
            place = slice(part * width, (part + 1) * width)
            if x is not None:
                is_first = (node_type, part) not in self._begun
                add_product_of_columns(self._weights[node_type][place], grad, x, is_first)
                self._begun.add((node_type, part))
            if self._of_biases[node_type]:
                bias = self._biases[node_type][place]
                bias += grad.sum(0, dtype=bias.dtype)
            if of_feature is None:
                continue
            if isinstance(rows, slice):
                add_product(of_feature[rows], grad, self._low[node_type][place], False)
            else:
                of_feature.index_add_(0, rows, product_of_rows(grad, self._low[node_type][place]))

    def results(self, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradients in the dtype of each operand, None where none is needed."""
        sums = (*self._features, *self._weights, *self._biases)
        return [
            each.to(operand.dtype) if need and each is not None else None
            for each, operand, need in zip(sums, operands, self._needs, strict=True)
        ]
