"""Weights of several relations beside each other: the matrices of products of sums.

A step of a typed layer takes a few operations on all of its weights, rather than some for each
relation, for which the host takes longer than the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate.sparse.relation_blocks import BlockGroup

# So many tensors are added one by one: to stack them and to add them up takes two launches.
_FEW = 3


@dataclass(frozen=True)
class SideBySideWeights:
    """How the weights of a group's blocks form the matrices of its products.

    Args:
        counts: of each block, the number of its weights [out, columns], which are added up; None:
            one tensor [products, out, columns] has all matrices.
        blocks: of each product, the number of its blocks.
        factors: of each product.
    """

    counts: list[int] | None
    blocks: list[int]
    factors: list[float]

    @classmethod
    def of_group(
        cls, group: BlockGroup, weights: Tensor | Sequence[Sequence[Tensor]], factors: list[float]
    ) -> SideBySideWeights:
        """Returns that of a group, given the weights of each block and the factors of results."""
        return cls(
            None if isinstance(weights, Tensor) else list(map(len, weights)),
            [len(product.blocks) for product in group.products],
            [factors[product.output] for product in group.products],
        )

    @property
    def num_weights(self) -> int:
        """The number of tensors."""
        return 1 if self.counts is None else sum(self.counts)

    def matrices(self, weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Returns [out, columns of its blocks] for each product, in `dtype`; differentiable."""
        if self.counts is None:
            return list(weights[0].to(dtype).unbind())
        ends = list(accumulate(self.counts, initial=0))
        whole = torch.cat([sum_of(weights[first:end]) for first, end in pairwise(ends)], 1)
        self._scale(whole)
        return list(whole.to(dtype).split_with_sizes(self._widths(whole), 1))

    def new_gradient(self, matrices: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Returns memory for the gradients of the matrices."""
        out = matrices[0].shape[0]
        if self.counts is None:
            return matrices[0].new_empty(len(matrices), *matrices[0].shape, dtype=dtype)
        columns = sum(matrix.shape[1] for matrix in matrices)
        return matrices[0].new_empty(out, columns, dtype=dtype)

    def by_product(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Returns the part of each product of what :meth:`new_gradient` returns."""
        if self.counts is None:
            return gradient.unbind()
        return tuple(gradient.split_with_sizes(self._widths(gradient), 1))

    def gradients(
        self, gradient: Tensor, weights: Sequence[Tensor], is_used: Sequence[bool]
    ) -> list[Tensor | None]:
        """Returns the gradients of the weights, given that of the matrices, which is written to.

        Args:
            is_used: of each product, whether its result has a gradient.

        Each has memory of its own: who scales one in place would else scale others, too.
        """
        if not any(is_used):
            return [None] * len(weights)
        if self.counts is None:
            return [gradient.to(weights[0].dtype)]
        self._scale(gradient)
        columns = gradient.shape[1] // len(self.counts)
        parts = gradient.split_with_sizes([columns] * len(self.counts), 1)
        products = [
            used for used, count in zip(is_used, self.blocks, strict=True) for _ in range(count)
        ]
        blocks = zip(parts, products, self.counts, strict=True)
        of_weights = [(part, used) for part, used, count in blocks for _ in range(count)]
        # Side by side they are no matrices of their own: autograd would copy one after the other.
        apart = torch.stack([part for part, _ in of_weights]).to(weights[0].dtype).unbind()
        return [part if used else None for part, (_, used) in zip(apart, of_weights, strict=True)]

    def _widths(self, whole: Tensor) -> list[int]:
        assert self.counts is not None
        columns = whole.shape[1] // len(self.counts)
        return [count * columns for count in self.blocks]

    def _scale(self, whole: Tensor) -> None:
        first = 0
        for width, factor in zip(self._widths(whole), self.factors, strict=True):
            if factor != 1:
                whole.narrow(1, first, width).mul_(factor)
            first += width


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the sum of tensors of one shape: the tensor itself if it is one."""
    if len(tensors) > _FEW:
        return torch.stack(list(tensors)).sum(0)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total
