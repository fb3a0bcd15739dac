"""Products of the rows that a typed layer reads, which are read in pieces.

All products of a layer are one function of autograd. Its backward pass reads the rows of features
again, so that nothing of their size is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

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


class Product(NamedTuple):
    """What the rows of a block are multiplied by.

    Args:
        result: the position of the result that the product is a part of.
        weight: the position of the weight.
        part: which of the equal parts of the weight's rows.
    """

    result: int
    weight: int
    part: int = 0


class Block(NamedTuple):
    """Rows of features, and their products.

    Args:
        feature: the position of the features.
        rows: the ids of the rows, or the range of the first ones.
        num_rows: their number.
        products: of the rows; the parts of a result are in the order of blocks.
        output: the position of the layer's output that is made of the products.
    """

    feature: int
    rows: Tensor | slice
    num_rows: int
    products: tuple[Product, ...]
    output: int = 0


def multiply_blocks(
    blocks: Sequence[Block],
    features: Sequence[Tensor | EncodedRows],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    dtype: torch.dtype,
    *,
    parts: int = 1,
    used: set[int] | None = None,
) -> tuple[Tensor, ...]:
    """Multiplies rows of several features by parts of several weights.

    Args:
        blocks: the rows, and their products.
        features: [rows, columns] each, or encoded rows.
        weights: [parts * width, columns] each.
        biases: [parts * width] of each weight, or none at all.
        dtype: of the products; features of another one are converted as they are read.
        parts: of each weight and bias.
        used: when the backward pass runs, the layer's outputs that have a gradient. Features and
            weights of which only other outputs are made get none, as in torch. None: all have one.

    Returns:
        For each result [rows of its blocks, width] of `dtype`.

    Synchronises no GPU. Differentiable once. Weights have gradients, zeros where no row is read.
    """
    encoded, tensors = split_encoded(features, dtype)
    plan = _Plan(encoded, dtype, blocks, len(weights), parts, used)
    results: tuple[Tensor, ...] = _Products.apply(  # type: ignore[no-untyped-call]
        plan, *tensors, *weights, *biases
    )
    return results


def typed_keys_queries_values(
    pairs: TypedPairs,
    features: Sequence[Tensor | EncodedRows],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what :func:`typed_dot_attention` takes, made by a linear map of each node type.

    Args:
        pairs: the edges; node types as in `features`.
        features: [rows, columns] of each node type, or encoded rows.
        weights: for each node type [3 * width, columns]: of keys, queries and values.
        biases: for each node type [3 * width].
        dtype: of the products.

    Returns:
        Keys and values of the columns of ``pairs.matrix``, and queries of the first ``pairs.sizes``
        nodes of each type, [n, width] of `dtype` each.

    As :func:`multiply_blocks`, which reads the rows.
    """
    lengths = [end - first for first, end in pairwise(pairs.column_cuts)]
    blocks = [
        Block(i, rows, length, (Product(0, i, 0), Product(1, i, 2)))
        for i, (rows, length) in enumerate(zip(pairs.chosen, lengths, strict=True))
    ]
    blocks += [
        Block(i, slice(0, size), size, (Product(2, i, 1),)) for i, size in enumerate(pairs.sizes)
    ]
    keys, values, queries = multiply_blocks(blocks, features, weights, biases, dtype, parts=3)
    return keys, values, queries


@dataclass(frozen=True)
class _Plan(RowReader):
    """The arguments of one call that the forward and the backward pass read."""

    blocks: Sequence[Block]
    num_weights: int
    parts: int
    used: set[int] | None

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Returns features, weights and biases."""
        types, end = len(self.encoded), len(self.encoded) + self.num_weights
        return operands[:types], operands[types:end], operands[end:]

    def has_gradients(self, block: Block) -> bool:
        """Returns whether the products of a block have gradients, in the backward pass."""
        return self.used is None or block.output in self.used

    def pieces_of_blocks(
        self, features: Sequence[Tensor], results: Sequence[Tensor], *, backward: bool
    ) -> Iterator[tuple[Block, Any, list[Tensor]]]:
        """Returns each piece of the blocks, the rows of features that it reads, and its rows of the
        results of its products; in the backward pass of blocks whose products have gradients.
        """
        lengths: list[list[int]] = [[] for _ in results]
        for block in self.blocks:
            for product in block.products:
                lengths[product.result].append(block.num_rows)
        by_result = [
            iter(result.split_with_sizes(counts))
            for result, counts in zip(results, lengths, strict=True)
        ]
        for block in self.blocks:
            of_block = [next(by_result[product.result]) for product in block.products]
            if not backward or self.has_gradients(block):
                pieces = self.in_pieces(features, block.feature, block.rows, *of_block)
                for rows, *of_rows in pieces:
                    yield block, rows, of_rows


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, ...]:
        features, weights, biases = plan.split(operands)
        width = weights[0].shape[0] // plan.parts
        low = [each.to(plan.dtype) for each in weights]
        of_biases: Sequence[Tensor | None] = [None] * (len(weights) * plan.parts)
        if biases:
            of_biases = torch.stack(list(biases)).to(plan.dtype).view(-1, width).unbind()
        counts: dict[int, int] = {}
        for block in plan.blocks:
            for product in block.products:
                counts[product.result] = counts.get(product.result, 0) + block.num_rows
        results = tuple(low[0].new_empty(counts[i], width) for i in sorted(counts))
        parts = [torch.split(each.t(), width, 1) for each in low]
        pieces = plan.pieces_of_blocks(features, results, backward=False)
        for block, rows, of_rows in pieces:
            x = plan.select(features, block.feature, rows)
            for (_, weight, part), out in zip(block.products, of_rows, strict=True):
                multiply(x, parts[weight][part], out, of_biases[plan.parts * weight + part])
        ctx.save_for_backward(*operands, *low)
        ctx.plan = plan
        return results

    @staticmethod
    @once_differentiable("products of typed rows")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, len(ctx.needs_input_grad) - 1
        operands, low = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        sums = _Gradients(plan, operands, low, ctx.needs_input_grad[1:])
        pieces = plan.pieces_of_blocks(sums.inputs, grads, backward=True)
        for block, rows, of_rows in pieces:
            sums.add(block, rows, of_rows)
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
        blocks = [block for block in plan.blocks if plan.has_gradients(block)]
        read = {block.feature for block in blocks}
        self._multiplied = {product.weight for block in blocks for product in block.products}
        self._features = [
            torch.zeros_like(x) if need and i in read else None
            for i, (x, need) in enumerate(zip(self.inputs, of_features, strict=True))
        ]
        dtype, width = sum_dtype(plan.dtype), weights[0].shape[0] // plan.parts
        self._weights = [torch.empty_like(each, dtype=dtype) for each in weights]
        of_parts = weights[0].new_zeros(len(biases) * plan.parts, width, dtype=dtype)
        self._biases = of_parts.view(len(biases), plan.parts * width)
        # Parts of weights and biases, by weight.
        self._low = [torch.split(each, width) for each in low]
        self._weight_parts = [torch.split(each, width) for each in self._weights]
        self._bias_parts = of_parts.unbind()
        self._begun: set[tuple[int, int]] = set()

    def add(self, block: Block, rows: Any, grads: Sequence[Tensor]) -> None:
        """Adds the gradients that come from one piece of rows.

        Args:
            block: of the rows.
            rows: the rows, as :meth:`RowReader.select` takes them.
            grads: of the products of the block.
        """
        x = None
        if any(self._of_weights[product.weight] for product in block.products):
            x = self._plan.select(self.inputs, block.feature, rows)
        of_feature = self._features[block.feature]
        for (_, weight, part), grad in zip(block.products, grads, strict=True):
            is_first = (weight, part) not in self._begun
            self._begun.add((weight, part))
            if x is not None:
                add_product_of_columns(self._weight_parts[weight][part], grad, x, is_first)
            if self._of_biases and self._of_biases[weight]:
                bias = self._bias_parts[self._plan.parts * weight + part]
                if is_first:
                    torch.sum(grad, 0, dtype=bias.dtype, out=bias)
                else:
                    bias += grad.sum(0, dtype=bias.dtype)
            if of_feature is None:
                continue
            low = self._low[weight][part]
            if isinstance(rows, slice):
                add_product(of_feature[rows], grad, low, False)
            else:
                of_feature.index_add_(0, rows, product_of_rows(grad, low))

    def results(self, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradients in the dtype of each operand, None where none is needed."""
        for weight, parts in enumerate(self._weight_parts):
            for part, of_part in enumerate(parts):
                if (weight, part) not in self._begun:
                    of_part.zero_()
        of_weights, of_biases = (
            [each if i in self._multiplied else None for i, each in enumerate(sums)]
            for sums in (self._weights, self._biases.unbind())
        )
        sums = (*self._features, *of_weights, *of_biases)
        return [
            each.to(operand.dtype) if need and each is not None else None
            for each, operand, need in zip(sums, operands, self._needs, strict=True)
        ]
