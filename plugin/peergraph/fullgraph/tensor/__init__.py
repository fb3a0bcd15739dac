"""Tensors of all ranks' rows, and rules of operations."""

from peergraph.fullgraph.tensor import (  # rules register themselves
    batch_norm,
    factories,
    pointwise,
    products,
    recurrent,
    row_norms,
    selection,
    sums,
    views,
)

__all__ = [
    "batch_norm",
    "factories",
    "pointwise",
    "products",
    "recurrent",
    "row_norms",
    "selection",
    "sums",
    "views",
]
