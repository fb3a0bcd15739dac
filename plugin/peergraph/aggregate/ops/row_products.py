"""Products of selected rows, in pieces: selected rows are never in memory all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.memory import EncodedRows

# Whether this torch can write products of half precision in float32, on a GPU.
_ROUNDS_LATE = hasattr(torch.ops.aten.mm, "dtype_out")
# Bytes of the selected rows that are in memory at a time.
_PIECE_BYTES = 1 << 29


@dataclass(frozen=True)
class Selection:
    """Rows of a matrix of features.

    Args:
        feature: the position of the matrix among the features.
        rows: [n] distinct int32 or int64 row numbers, in range; or the number of the first rows.
    """

    feature: int
    rows: Tensor | int

    def __len__(self) -> int:
        return self.rows if isinstance(self.rows, int) else len(self.rows)

    def piece(self, first: int, last: int) -> Tensor | slice:
        """Returns the numbers of some of the rows."""
        return slice(first, last) if isinstance(self.rows, int) else self.rows[first:last]


Output = Sequence[tuple[int, int]]
"""The blocks of one result: for each the positions of a selection and of a weight."""


@dataclass(frozen=True)
class _Plan:
    """What is multiplied; `features` has None for those that autograd passes."""

    features: list[EncodedRows | None]
    selections: Sequence[Selection]
    outputs: Sequence[Output]
    dtype: torch.dtype
    dtypes: Sequence[torch.dtype]

    def blocks(self) -> Iterator[tuple[Selection, list[tuple[int, int, int]]]]:
        """Returns each selection with the positions of output, weight and first row there."""
        starts = []
        for output in self.outputs:
            first, of_output = 0, {}
            for position, weight in output:
                of_output[position] = weight, first
                first += len(self.selections[position])
            starts.append(of_output)
        for i, selection in enumerate(self.selections):
            uses = [(k, *of_output[i]) for k, of_output in enumerate(starts) if i in of_output]
            yield selection, uses

    def rows(
        self, features: Sequence[Tensor], selection: Selection, piece: Tensor | slice
    ) -> Tensor:
        """Returns some rows of a selection in the plan's dtype."""
        encoded = self.features[selection.feature]
        if encoded is not None:
            return encoded.select(piece, self.dtype)
        feature = features[selection.feature]
        rows = feature[piece] if isinstance(piece, slice) else feature.index_select(0, piece)
        return rows.to(self.dtype)


def row_products(
    features: Sequence[Tensor | EncodedRows],
    selections: Sequence[Selection],
    weights: Sequence[Tensor],
    outputs: Sequence[Output],
    dtype: torch.dtype,
    dtypes: Sequence[torch.dtype],
) -> tuple[Tensor, ...]:
    """Multiplies selected rows by weights. The backward pass selects the rows again.

    Args:
        features: matrices [rows, columns], or encoded rows. They are converted to `dtype` as they
            are read.
        selections: rows of `features`.
        weights: matrices [n, columns] of `dtype`.
        outputs: the blocks of each result, one below the other; a selection is at most once in a
            result. The weights of one result have the same number of columns.
        dtype: in which rows are multiplied.
        dtypes: of each result: `dtype`, or float32 for results of few columns.

    Returns:
        A matrix for each of `outputs`: rows times weights transposed. Differentiable once, in
        features that are tensors and in weights.
    """
    plan = _Plan(
        [each if isinstance(each, EncodedRows) else None for each in features],
        selections,
        outputs,
        dtype,
        dtypes,
    )
    nothing = weights[0].new_empty(0)
    tensors = [
        nothing
        if isinstance(each, EncodedRows)
        else each.to(dtype)
        if each.requires_grad and torch.is_grad_enabled()
        else each
        for each in features
    ]
    results: tuple[Tensor, ...] = _Products.apply(plan, *tensors, *weights)  # type: ignore[no-untyped-call]
    return results


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *operands: Tensor) -> tuple[Tensor, ...]:
        count = len(plan.features)
        features, weights = operands[:count], operands[count:]
        ctx.save_for_backward(*operands)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        results: list[Tensor] = []
        for output in plan.outputs:
            count = sum(len(plan.selections[position]) for position, _ in output)
            columns = weights[output[0][1]].shape[0]
            results.append(weights[0].new_empty(count, columns, dtype=plan.dtypes[len(results)]))
        for selection, uses in plan.blocks():
            for first, last in _pieces(selection, features, plan):
                rows = plan.rows(features, selection, selection.piece(first, last))
                for position, weight, start in uses:
                    out = results[position][start + first : start + last]
                    _multiply(rows, weights[weight], out)
        return tuple(results)

    @staticmethod
    @once_differentiable("products of selected rows")
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, len(ctx.plan.features)
        features, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needs = ctx.needs_input_grad[1:]
        wide = torch.float64 if plan.dtype == torch.float64 else torch.float32
        of_features = [
            torch.zeros_like(feature) if needed else None
            for feature, needed in zip(features, needs, strict=False)
        ]
        of_weights: list[Tensor | None] = [None] * len(weights)
        for selection, uses in plan.blocks():
            uses = [use for use in uses if grads[use[0]] is not None]
            of_feature = of_features[selection.feature]
            for first, last in _pieces(selection, features, plan) if uses else ():
                piece = selection.piece(first, last)
                parts = [
                    grads[k][start + first : start + last].to(plan.dtype) for k, _, start in uses
                ]
                if any(needs[count + weight] for _, weight, _ in uses):
                    rows = plan.rows(features, selection, piece)
                    for part, (_, weight, _) in zip(parts, uses, strict=True):
                        if needs[count + weight]:
                            product, total = part.t() @ rows, of_weights[weight]
                            # Sums of pieces are not rounded to half precision.
                            of_weights[weight] = (
                                product.to(wide) if total is None else total.add_(product)
                            )
                if of_feature is not None:
                    products = [
                        (part, weights[weight])
                        for part, (_, weight, _) in zip(parts, uses, strict=True)
                    ]
                    _add_products(of_feature, piece, products)
        given = [
            torch.zeros_like(weight)
            if needed and total is None
            else None
            if total is None
            else total.to(plan.dtype)
            for weight, total, needed in zip(weights, of_weights, needs[count:], strict=True)
        ]
        return (None, *of_features, *given)


def _multiply(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """Writes rows times the transposed weight, which is not rounded to the dtype of the rows."""
    if out.dtype == rows.dtype:
        torch.mm(rows, weight.t(), out=out)
    elif rows.is_cuda and _ROUNDS_LATE:
        torch.mm(rows, weight.t(), out_dtype=out.dtype, out=out)
    else:
        torch.mm(rows.to(out.dtype), weight.t().to(out.dtype), out=out)


def _pieces(
    selection: Selection, features: Sequence[Tensor], plan: _Plan
) -> Iterator[tuple[int, int]]:
    """Returns the bounds of each piece of a selection."""
    encoded = plan.features[selection.feature]
    columns = (features[selection.feature] if encoded is None else encoded).shape[1]
    step = max(1, _PIECE_BYTES // max(1, columns * plan.dtype.itemsize))
    for first in range(0, len(selection), step):
        yield first, min(first + step, len(selection))


def _add_products(
    out: Tensor, piece: Tensor | slice, products: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Adds the sum of the products to the rows of a piece."""
    if isinstance(piece, slice):
        for left, right in products:
            out[piece].addmm_(left, right)
        return
    total = products[0][0] @ products[0][1]
    for left, right in products[1:]:
        total.addmm_(left, right)
    out.index_add_(0, piece, total)
