"""Steps that several of Peergraph's layers share: checks, structures, sums with products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from peergraph.aggregate import Structure, layers
from peergraph.fullgraph import PartitionedEdgeIndex
from peergraph.integration import Unsupported, is_explaining, note, require

from ..compat import has_hooks
from .features import Ends, ends_of, is_plain, is_rows, kind_of, self_rows, table_rows_or_tensor
from .layer import FastLayer, Size


def weighted_operands(kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
    """Returns features and weights of edges, which PyG takes as [edges] or as [edges, 1]."""
    x, weight = ends_of(kwargs["x"]), kwargs["edge_weight"]
    if weight is None:
        return x, None
    fits = is_rows(weight) and x.x_src.dim() == 2
    require(fits, "there are weights and more than features")
    return x, weight.reshape(-1)


def require_projection(layer: FastLayer, x: Ends, edge_index: Any) -> str:
    """Returns the reduction; raises Unsupported unless sums and products can be one step."""
    reduce = layer._require_settings()
    layer._require_steps("propagate")
    require(isinstance(edge_index, Tensor), f"edge_index is a {kind_of(edge_index)}")
    for end in x.distinct:
        layer._require_features(end, edge_index)
        require(end.ndim == 2, "x is no matrix")
    require(not torch.is_autocast_enabled(x.x_src.device.type), "there is autocast")
    return reduce


def require_weight(weight: Any, x: Tensor, width: int) -> None:
    """Raises Unsupported unless `weight` is a plain tensor that multiplies rows of `x`."""
    require(is_plain(weight) and weight.dtype == x.dtype, "weights are of another kind")
    fits = weight.device == x.device and weight.shape[width] == x.shape[1]
    require(fits, "weights do not fit")


def is_plain_map(linear: Any) -> bool:
    """Returns whether a map is PyG's linear map as it is, without hooks."""
    plain = type(linear) is Linear and "forward" not in linear.__dict__
    return plain and not has_hooks(linear)


def weight_to_reorder(linear: Any, x: Tensor) -> Tensor | None:
    """Returns the weight of a map that may also run after the sum over neighbours, else None."""
    if not is_plain_map(linear) or linear.bias is not None or x.ndim != 2:
        return None
    weight = linear.weight
    fits = is_plain(weight) and weight.dtype == x.dtype and weight.shape[1:] == x.shape[1:]
    return weight if fits and not torch.is_autocast_enabled(x.device.type) else None


def aggregate_and_project(
    layer: FastLayer, x: Ends, edge_index: Any, size: Size, to_rows: Any, to_self: Any
) -> Tensor:
    """Returns ``to_rows(propagate(x)) + to_self(x of destinations)``; raises Unsupported.

    Args:
        layer: reduces features without weights of edges.
        x: its features.
        edge_index, size: as for ``propagate``.
        to_rows, to_self: PyG's linear maps; the second has no bias.
    """
    reduce = require_projection(layer, x, edge_index)
    source, target = x
    maps = [(to_rows, source)] + ([] if target is None else [(to_self, target)])
    for linear, rows in maps:
        require(is_plain_map(linear), "a map is the user's, or there are hooks of a map")
        require_weight(linear.weight, rows, 1)
    bias = to_rows.bias
    require(bias is None or is_plain(bias), "a bias is of another kind")
    require(target is None or to_self.bias is None, "a map is the user's")
    csc = layer._structure(edge_index, size, x, None)
    out = layers.sage(
        csc,
        table_rows_or_tensor(source, csc.num_edges),
        to_rows.weight,
        reduce=reduce,
        self_weight=None if target is None else to_self.weight,
        self_x=self_rows(x),
        bias=bias,
    )
    if is_explaining():
        note(f"propagate: peergraph, {reduce} over {csc}")
    return out


def structure_of_one_pass(
    layer: FastLayer, x: Ends, edge_index: Any, size: Size, parameter_dtype: torch.dtype
) -> Structure:
    """Returns the structure; raises Unsupported unless attention runs in one pass over it."""
    require(layer._require_settings() == "sum", f"aggr is {layer.aggr}")
    layer._require_steps("propagate", "edge_updater")
    layer._require_features(x.x_src, edge_index)
    dropout = layer.dropout if layer.training else 0.0
    heads, depth = layer.heads, layer.out_channels
    reason = layers.why_not_one_pass(x.x_src, heads, depth, parameter_dtype, dropout)
    if reason is not None:
        raise Unsupported(reason)
    require(size is None or None not in size, "size is not all given")
    csc = layer._structure(edge_index, size, x, None)
    square = not layer.add_self_loops or csc.num_sources == csc.num_destinations
    bipartite = isinstance(edge_index, PartitionedEdgeIndex) and not square
    require(not bipartite, "self loops of two types of nodes are added to the structure")
    return csc


def combine_heads(layer: FastLayer, out: Tensor, target: Tensor | None) -> Tensor:
    residual = None
    if layer.res is not None and target is not None:
        residual = layer.res(target)
    return layers.combine_heads(out, concat=layer.concat, residual=residual, bias=layer.bias)


def with_attention_weights(out: Tensor, by_edges: Callable[[], Any], wanted: bool | None) -> Any:
    """Returns the result, with the weights of edges if they are wanted.

    PyG's code computes the weights beside it, so that asking for them does not change the result.
    """
    return (out, by_edges()[1]) if wanted else out
