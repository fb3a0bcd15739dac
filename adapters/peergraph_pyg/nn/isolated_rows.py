"""Results of nodes that have no edges, which follow those of nodes that have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from peergraph.aggregate import layers
from peergraph.aggregate.layers import TypedResult, without_autocast

from ..data.lazy_features import LazyRows, gathered
from ..data.tailed_rows import TailedRows


def with_isolated_rows(
    result: TypedResult,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    factor: float = 1.0,
) -> Tensor:
    """Returns the results of all nodes, given those of the first, which may have edges.

    Those of the others are products of their own rows, which are computed if something reads them.

    Args:
        result: of a typed layer, [n, out].
        x: features of all nodes.
        weights: [out, columns of x] each; their sum multiplies the nodes' own rows.
        biases: [out] each, which are added up.
        factor: of the results.
    """
    first = result.first
    count, dtype = x.shape[0], first.dtype
    if first.shape[0] == count:
        return first

    def total(parameters: Sequence[Tensor]) -> Tensor:
        of_all = layers.total_of(parameters)
        return (of_all if factor == 1 else of_all * factor).to(dtype)

    def totals() -> list[Tensor]:
        return [total(each) for each in (weights, biases) if each]

    if not weights:
        bias = total(biases) if biases else first.new_zeros(first.shape[1])
        return TailedRows.of(first, bias, count)

    def append(parameters: Sequence[Tensor], before: TypedResult, begin: int, end: int) -> Tensor:
        weight, bias = parameters if biases else (*parameters, None)
        assert weight is not None
        if type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled()):
            rows, chosen = x.rows_in(begin, end, dtype), slice(0, end - begin)
        else:
            rows, chosen = gathered(x), slice(begin, end)
        return without_autocast(lambda: layers.append_products(before, rows, chosen, weight, bias))

    return TailedRows.of_computed(result, partial(partial, append), x, totals)
