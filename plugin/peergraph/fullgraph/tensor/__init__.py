"""Tensors of all ranks' rows, and rules of operations."""

from peergraph.fullgraph.tensor import (  # rules register themselves
    batch_norm,
    instance_norm,
    pointwise,
    products,
    recurrent,
    selection,
    sums,
    views,
)

__all__ = [
    "batch_norm",
    "instance_norm",
    "pointwise",
    "products",
    "recurrent",
    "selection",
    "sums",
    "views",
]
