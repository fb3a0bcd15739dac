"""Keys, values and queries of typed attention: products of the rows that edges read, in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
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

    def columns(
        self, features: Sequence[Tensor], *tensors: Tensor
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Returns the node type of each piece of the columns, the rows of features that it reads,
        and its parts of tensors.
        """
        lengths = [end - first for first, end in pairwise(self.pairs.column_cuts)]
        return self._by_type(features, self.pairs.chosen, lengths, tensors)

    def destinations(
        self, features: Sequence[Tensor], *tensors: Tensor
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """As :meth:`columns`, of the destinations."""
        sizes = self.pairs.sizes
        return self._by_type(features, [slice(0, size) for size in sizes], sizes, tensors)

    def _by_type(
        self,
        features: Sequence[Tensor],
        rows: Sequence[Tensor | slice],
        lengths: list[int],
        tensors: Sequence[Tensor],
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        parts = zip(*[tensor.split_with_sizes(lengths) for tensor in tensors], strict=True)
        for node_type, (of_type, of_tensors) in enumerate(zip(rows, parts, strict=True)):
            for piece in self.in_pieces(features, node_type, of_type, *of_tensors):
                yield node_type, piece


class _TypedKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weights, biases = plan.split(operands)
        pairs, width = plan.pairs, weights[0].shape[0] // 3
        low = [each.to(plan.dtype) for each in weights]
        of_biases = torch.stack(list(biases)).to(plan.dtype).view(-1, width).unbind()
        counts = pairs.num_columns, pairs.num_columns, sum(pairs.sizes)
        keys, values, queries = (low[0].new_empty(count, width) for count in counts)
        thirds = [torch.split(each.t(), width, 1) for each in low]
        for node_type, (rows, *parts) in plan.columns(features, keys, values):
            x = plan.select(features, node_type, rows)
            for third, out in zip((0, 2), parts, strict=True):
                multiply(x, thirds[node_type][third], out, of_biases[3 * node_type + third])
        for node_type, (rows, out) in plan.destinations(features, queries):
            x = plan.select(features, node_type, rows)
            multiply(x, thirds[node_type][1], out, of_biases[3 * node_type + 1])
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
        for node_type, (rows, of_keys, of_values) in plan.columns(sums.inputs, keys, values):
            sums.add(node_type, rows, {0: of_keys, 2: of_values})
        for node_type, (rows, of_queries) in plan.destinations(sums.inputs, queries):
            sums.add(node_type, rows, {1: of_queries})
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
        self._plan, self._needs = plan, needs
        self.inputs, weights, biases = plan.split(operands)
        of_features, self._of_weights, self._of_biases = plan.split(needs)
        self._features = [
            torch.zeros_like(x) if need else None
            for x, need in zip(self.inputs, of_features, strict=True)
        ]
        dtype, width = sum_dtype(plan.dtype), weights[0].shape[0] // 3
        self._weights = [torch.empty_like(each, dtype=dtype) for each in weights]
        self._biases = biases[0].new_zeros(len(biases), 3 * width, dtype=dtype)
        # Thirds of keys, queries and values, by type.
        self._low = [torch.split(each, width) for each in low]
        self._weight_thirds = [torch.split(each, width) for each in self._weights]
        self._bias_thirds = self._biases.view(-1, width).unbind()
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
        for third, grad in parts.items():
            is_first = (node_type, third) not in self._begun
            self._begun.add((node_type, third))
            if x is not None:
                add_product_of_columns(self._weight_thirds[node_type][third], grad, x, is_first)
            if self._of_biases[node_type]:
                bias = self._bias_thirds[3 * node_type + third]
                if is_first:
                    torch.sum(grad, 0, dtype=bias.dtype, out=bias)
                else:
                    bias += grad.sum(0, dtype=bias.dtype)
            if of_feature is None:
                continue
            low = self._low[node_type][third]
            if isinstance(rows, slice):
                add_product(of_feature[rows], grad, low, False)
            else:
                of_feature.index_add_(0, rows, product_of_rows(grad, low))

    def results(self, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradients in the dtype of each operand, None where none is needed."""
        for node_type, thirds in enumerate(self._weight_thirds):
            for third, of_third in enumerate(thirds):
                if (node_type, third) not in self._begun:
                    of_third.zero_()
        sums = (*self._features, *self._weights, *self._biases.unbind())
        return [
            each.to(operand.dtype) if need and each is not None else None
            for each, operand, need in zip(sums, operands, self._needs, strict=True)
        ]
