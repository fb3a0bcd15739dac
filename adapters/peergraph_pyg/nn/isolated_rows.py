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


def with_isolated_rows(result: TypedResult, x: Tensor) -> Tensor:
    """Returns the results of all nodes, given those of the first, which may have edges.

    Those of the others are products of their own rows, which are computed if something reads them.

    Args:
        result: of a typed layer, [n, out].
        x: features of all nodes.
    """
    first, weight, bias = result.first, result.weight, result.bias
    count, dtype = x.shape[0], first.dtype
    if first.shape[0] == count:
        return first
    if weight is None:
        return TailedRows.of(
            first, first.new_zeros(first.shape[1]) if bias is None else bias, count
        )

    def append(parameters: Sequence[Tensor], before: TypedResult, begin: int, end: int) -> Tensor:
        weight, bias = parameters if len(parameters) > 1 else (*parameters, None)
        assert weight is not None
        if type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled()):
            rows, chosen = x.rows_in(begin, end, dtype), slice(0, end - begin)
        else:
            rows, chosen = gathered(x), slice(begin, end)
        return without_autocast(lambda: layers.append_products(before, rows, chosen, weight, bias))

    parameters = [weight] if bias is None else [weight, bias]
    return TailedRows.of_computed(result, partial(partial, append), x, lambda: parameters)
