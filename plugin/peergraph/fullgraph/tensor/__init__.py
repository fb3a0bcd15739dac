"""Tensors of all ranks' rows, and rules of operations."""

from peergraph.fullgraph.tensor import (  # rules register themselves
    pointwise,
    products,
    selection,
    sums,
    views,
)

__all__ = ["pointwise", "products", "selection", "sums", "views"]
