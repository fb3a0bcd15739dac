"""What one call of sums over the relations of a typed layer computes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.side_by_side_weights import SideBySideWeights, sum_of
from peergraph.aggregate.sparse.relation_blocks import RelationBlocks


class Tail(NamedTuple):
    """A result that lacks its last rows, from `first` on; and the place of its destinations' own
    rows among the blocks of a product.
    """

    product: int
    output: int
    feature: int
    first: int
    place: int
    blocks: int

    def columns_of(self, matrix: Tensor) -> Tensor:
        """Returns the columns of a product's matrix that multiply destinations' own rows."""
        columns = matrix.shape[1] // self.blocks
        return matrix.narrow(1, self.place * columns, columns)

    def padded(self, own: Tensor) -> Tensor:
        """Returns a matrix of a product that has zeros in other columns."""
        columns = own.shape[1]
        return F.pad(own, (self.place * columns, (self.blocks - self.place - 1) * columns))


@dataclass(frozen=True)
class SumPlan:
    """What a call computes.

    Args:
        stored: by feature: rows that are no tensor, or None.
        num_biases, factors: by result.
        weights: by group.
        columns: of results.
    """

    edges: RelationBlocks
    stored: list[Any]
    num_biases: list[int]
    factors: list[float]
    weights: list[SideBySideWeights]
    edge_values: list[Tensor | None]
    mean: bool
    dtype: torch.dtype
    columns: int

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """Returns features, biases, and by group the tensors of weights."""
        first, second = len(self.stored), len(self.stored) + sum(self.num_biases)
        weights = iter(operands[second:])
        by_group = [list(islice(weights, each.num_weights)) for each in self.weights]
        return operands[:first], operands[first:second], by_group

    def biases(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """Returns by result, where it has any, the sum of its biases in the dtype of products."""
        totals, first = {}, 0
        for output, (count, factor) in enumerate(zip(self.num_biases, self.factors, strict=True)):
            if count:
                total = sum_of(tensors[first : first + count])
                totals[output] = total if factor == 1 else total * factor
            first += count
        if len(totals) > 1:
            together = torch.stack(list(totals.values())).to(self.dtype)
            return dict(zip(totals, together.unbind(), strict=True))
        return {output: total.to(self.dtype) for output, total in totals.items()}

    def bias_gradients(
        self,
        grads: Sequence[Tensor | None],
        of_totals: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Returns the gradient of each bias, given those of results and of sums of biases."""
        gradients: list[Tensor | None] = []
        by_output = zip(grads, of_totals, self.num_biases, self.factors, strict=True)
        for grad, of_total, count, factor in by_output:
            if grad is None or count == 0:
                gradients += [None] * count
                continue
            total = grad.sum(0, dtype=sum_dtype(grad.dtype))
            total = total if of_total is None else total + of_total
            total = total if factor == 1 else total * factor
            # Each has memory of its own: who scales one in place would else scale all.
            gradients += [total] if count == 1 else total.repeat(count, 1).unbind()
        return [
            None if gradient is None else gradient.to(bias.dtype)
            for gradient, bias in zip(gradients, tensors, strict=True)
        ]

    @cached_property
    def tails(self) -> list[list[Tail]]:
        """By group, the results that lack their last rows, in which destinations have own rows
        only.
        """
        return [
            [
                Tail(number, product.output, feature, first, place, len(product.blocks))
                for number, product in enumerate(group.products)
                for place, block in enumerate(product.blocks)
                if group.relations[block] is None
                for feature, first in [(group.sources[block], self.edges.rows[product.output])]
                if first < group.rows_of(feature)
            ]
            for group in self.edges.groups
        ]

    def gradient_receivers(self, needs: Sequence[bool]) -> list[Tensor | None]:
        """Returns for each result that lacks its last rows a tensor without values, which receives
        the gradient of all rows in the backward pass; None for others.

        Args:
            needs: whether gradients of features are needed.
        """
        tensors: list[Tensor | None] = [None] * len(self.edges.rows)
        for group, tails in zip(self.edges.groups, self.tails, strict=True):
            for tail in tails:
                if needs[tail.feature]:
                    shape = group.rows_of(tail.feature), self.columns
                    tensors[tail.output] = torch.empty_strided(
                        shape, (0, 0), dtype=self.dtype, device=self.edges.device
                    )
        return tensors

    def own_weights(self, matrices: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
        """Returns for each result that lacks its last rows the weight that multiplies destinations'
        own rows; None for others.

        Args:
            matrices: of the products of each group.
        """
        tensors: list[Tensor | None] = [None] * len(self.edges.rows)
        for tails, of_group in zip(self.tails, matrices, strict=True):
            for tail in tails:
                own = tail.columns_of(of_group[tail.product])
                tensors[tail.output] = own.clone(memory_format=torch.contiguous_format)
        return tensors

    def own_gradients(
        self, number: int, grads: Sequence[Tensor | None], matrices: Sequence[Tensor]
    ) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yields what rows behind the first ones add to the gradients of a group's features.

        Args:
            number: of the group.
            grads: of all rows of each result, or None.
            matrices: of the group's products.

        Returns:
            The features, their first row, and the factors of the product.
        """
        for tail in self.tails[number]:
            grad = grads[tail.output]
            if grad is not None:
                own = tail.columns_of(matrices[tail.product])
                yield tail.feature, tail.first, grad[tail.first :], own
