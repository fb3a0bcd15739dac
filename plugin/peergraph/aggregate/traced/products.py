"""Aggregation followed by linear maps as an operator of torch, with gradients; see `sums.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.torch_operator import add_gradient, kernel
from peergraph.aggregate.ops.spmm_linear import Linear
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.traced.context import Context, gradient_matrix, or_empty
from peergraph.aggregate.traced.edges import TracedEdges


def _empty_products(
    x: Tensor, weights: list[Tensor], edges: TracedEdges, keep: list[bool]
) -> list[Tensor]:
    count = edges.num_destinations
    sums = [x.new_empty(count, x.shape[1]) for each in keep if each]
    return [x.new_empty(count, weights[0].shape[0]), *sums]


@kernel(_empty_products)
def traced_spmm_linear(
    x: Tensor,
    self_x: Tensor | None,
    self_weight: Tensor | None,
    bias: Tensor | None,
    weights: list[Tensor],
    edges: TracedEdges,
    mean: bool,
    keep: list[bool],
) -> list[Tensor]:
    """Returns the products, and the sums of each relation whose `keep` is true.

    Sums of the last rows, which have no edges, may have no values: nobody reads them.
    """
    count = edges.num_destinations
    matrices = [csc.trim_isolated_tail() for csc in edges.structures(counted=True)]
    context = Context([True, False, False, False, *[False] * 4, *keep])
    without: list[EdgeMatrix | None] = [None] * len(matrices)
    with torch.no_grad():
        out, *sums_by_relation = Linear.forward(
            context, x, self_x, self_weight, bias, count, matrices, mean, without, *weights
        )
    return [out, *(_append_undefined_rows(sums, count) for sums in sums_by_relation)]


def _append_undefined_rows(rows: Tensor, count: int) -> Tensor:
    """Appends rows, so that there are `count`. The values of the new rows are undefined."""
    if rows.shape[0] == count:
        return rows
    out = rows.new_empty(count, rows.shape[1])
    out[: rows.shape[0]] = rows
    return out


def _empty_gradients_of_products(
    grad: Tensor,
    self_weight: Tensor | None,
    weights: list[Tensor],
    edges: TracedEdges,
    needs: list[bool],
) -> list[Tensor]:
    width = 0 if self_weight is None else self_weight.shape[1]
    gradients = [
        grad.new_empty(edges.num_sources, weights[0].shape[1]),
        grad.new_empty(grad.shape[0], width),
        grad.new_empty(grad.shape[1], width),
        grad.new_empty(grad.shape[1]),
        *(grad.new_empty(weight.shape) for weight in weights),
    ]
    return [
        each if need else grad.new_empty(0) for each, need in zip(gradients, needs, strict=True)
    ]


@kernel(_empty_gradients_of_products)
def traced_spmm_linear_gradients(
    grad: Tensor,
    self_x: Tensor | None,
    self_weight: Tensor | None,
    weights: list[Tensor],
    sums_of_weights: list[Tensor],
    edges: TracedEdges,
    mean: bool,
    self_is_x: bool,
    needs: list[bool],
) -> list[Tensor]:
    """Returns the gradients of x, self_x, self_weight, bias and weights of the products.

    Args:
        grad: of the products.
        self_x: features of destinations, or `x`; None where no gradient needs them.
        self_weight, weights, edges, mean: as for :func:`traced_spmm_linear`.
        sums_of_weights: the sums, for each weight that needs a gradient.
        self_is_x: whether the self term is that of `x`.
        needs: which gradients are wanted.
    """
    matrices = [csc.trim_isolated_tail() for csc in edges.structures(counted=False)]
    sums = iter(sums_of_weights)
    rows = [
        next(sums)[: matrix.num_destinations] if need else None
        for matrix, need in zip(matrices, needs[4:], strict=True)
    ]
    context = Context(
        [*needs[:4], *[False] * 4, *needs[4:]],
        (self_x, self_weight, *weights, *rows),
        matrices=matrices,
        transposes=[gradient_matrix(matrix, needs[0]) for matrix in matrices],
        mean=mean,
        self_is_x=self_is_x,
        dtype=grad.dtype,
    )
    with torch.no_grad():
        gradients = Linear.backward(context, grad)
    of_tensors = [*gradients[:4], *gradients[8:]]
    return [or_empty(each, grad) for each in of_tensors]


def _gradients_of_products(
    needs: tuple[Any, ...], inputs: list[Any], output: list[Tensor], grads: list[Any]
) -> list[Any]:
    x, self_x, self_weight, _, weights, edges, mean, keep = inputs
    # A list of tensors may have one flag for all of them.
    each = needs[4] if isinstance(needs[4], (list, tuple)) else [needs[4]] * len(weights)
    of_weights = [bool(need) and has_sums for need, has_sums in zip(each, keep, strict=True)]
    need_tensors = [*(bool(need) for need in needs[:4]), *of_weights]
    own = (x if self_x is None else self_x) if need_tensors[2] else None
    gradients = traced_spmm_linear_gradients(
        grads[0], own, self_weight, weights, output[1:], edges, mean, self_x is None, need_tensors
    )
    results = [grad if need else None for grad, need in zip(gradients, need_tensors, strict=True)]
    return [*results[:4], results[4:], None, None, None]


add_gradient(traced_spmm_linear, _gradients_of_products)
