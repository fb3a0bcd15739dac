"""Tensors of all ranks' rows, and rules of operations."""

from peergraph.fullgraph.tensor import (  # rules register themselves
    pointwise,
    products,
    recurrent,
    selection,
    sums,
    views,
)

__all__ = ["pointwise", "products", "recurrent", "selection", "sums", "views"]
