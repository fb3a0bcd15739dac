"""The order of a sum over neighbours and a product with weights (MG-GCN 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.memory.device.default_machine import WORK

# Products with few columns have a multiple of this number. cuBLAS computes a product with one
# column as a matrix times a vector; the gradient of the vector, a sum over all nodes, then runs in
# a few thread blocks: on an H200, with 9.4 M nodes, 4 heads and 256 features, that takes 1.8 s,
# where eight columns take a few milliseconds. Rows of eight numbers are also read as vectors.
FAST_COLUMNS = 8


def multiplies_first(x: Tensor, weights: Sequence[Tensor], *, is_square: bool = False) -> bool:
    """Returns whether fewer columns are summed if `x` is multiplied by the weights first.

    Both orders give the same sums of products up to rounding. A sum before the product has no
    gradient pass where `x` needs none.

    Args:
        x: [sources, in].
        weights: [out, in] for each relation, all multiplied with `x`.
        is_square: there are as many destinations as sources. Where both orders sum as many columns,
            the product is first then: its backward pass reads `x`, which the layer before has kept,
            where that of a product behind the sum reads the sums, another such matrix.
    """
    grads = torch.is_grad_enabled()
    needs_grad = x.requires_grad or any(weight.requires_grad for weight in weights)
    before = x.shape[1] * (1 + (grads and x.requires_grad))
    after = sum(weight.shape[0] for weight in weights) * (1 + (grads and needs_grad))
    return after <= before if is_square and before > 0 else after < before


class RelationSize(NamedTuple):
    """The numbers that decide the order for a relation.

    Args:
        edges, sources, destinations: numbers of these.
        columns: of features.
        out: columns of the product.
    """

    edges: int
    sources: int
    destinations: int
    columns: int
    out: int


def relations_multiply_first(sizes: Sequence[RelationSize], device: torch.device) -> bool:
    """Returns whether several relations are summed quicker behind their products.

    What counts is the number of values that are read and written, products included.
    """
    products = WORK.cpu_products if device.type == "cpu" else WORK.products
    sums_first = products_first = 0.0
    for edges, sources, destinations, columns, out in sizes:
        pairs = min(edges, destinations)
        sums_first += columns * (edges + pairs * (2 + out / products))
        products_first += out * (edges + 2 * sources) + columns * sources * (1 + out / products)
    return WORK.product_margin * products_first < sums_first
