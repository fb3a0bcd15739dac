"""Steps that all attention layers have: the structure, the heads, and the weights of edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Structure, layers
from peergraph.aggregate.layers import without_autocast
from peergraph.fullgraph import PartitionedEdgeIndex
from peergraph.integration import Unsupported, require

from .features import Ends, is_partitioned
from .layer import FastLayer, Size
from .linear_maps import product_dtype
from .withheld_bias import bias_to_add


def structure_of_one_pass(
    layer: FastLayer, x: Ends, edge_index: Any, size: Size, parameter_dtype: torch.dtype
) -> Structure:
    """Returns the structure; raises Unsupported unless attention runs in one pass over it."""
    require(layer._require_settings() == "sum", f"aggr is {layer.aggr}")
    layer._require_steps("propagate", "edge_updater")
    layer._require_features(x.x_src, edge_index)
    dropout = layer.dropout if layer.training else 0.0
    heads, depth = layer.heads, layer.out_channels
    reason = _why_not_one_pass(x.x_src, heads, depth, parameter_dtype, dropout)
    if reason is not None:
        raise Unsupported(reason)
    require(size is None or None not in size, "size is not all given")
    csc = layer._structure(edge_index, size, x, None)
    square = not layer.add_self_loops or csc.num_sources == csc.num_destinations
    bipartite = isinstance(edge_index, PartitionedEdgeIndex) and not square
    require(not bipartite, "self loops of two types of nodes are added to the structure")
    return csc


def _why_not_one_pass(
    x: Tensor, heads: int, depth: int, parameter_dtype: torch.dtype, dropout: float
) -> str | None:
    """As ``layers.why_not_one_pass``; under autocast, for what the linear maps make of `x`."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling() or is_partitioned(x):
        return layers.why_not_one_pass(x, heads, depth, parameter_dtype, dropout)
    dtype = product_dtype(x.device, x.dtype, parameter_dtype)
    if dtype is None:
        return f"x is {x.dtype} and weights {parameter_dtype} under autocast"
    cast = torch.empty(0, *x.shape[1:], dtype=dtype, device=x.device)
    return without_autocast(lambda: layers.why_not_one_pass(cast, heads, depth, dtype, dropout))


def combine_heads(
    layer: FastLayer, out: Tensor, target: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns the result of a layer with parameters of `dtype`, which is the result's at least."""
    residual = None
    if layer.res is not None and target is not None:
        residual = layer.res(target)
    bias = bias_to_add(layer, layer.bias)
    combined = layers.combine_heads(out, concat=layer.concat, residual=residual, bias=bias)
    if bias is not layer.bias:  # What follows takes any dtype.
        return combined
    return combined.to(torch.promote_types(combined.dtype, dtype))


def with_attention_weights(
    out: Tensor, by_edges: Callable[[], Any], returns_weights: bool | None
) -> Any:
    """Returns the result, with the weights of edges if `returns_weights`.

    PyG's code computes the weights separately, so that they do not change the result.
    """
    return (out, by_edges()[1]) if returns_weights else out
