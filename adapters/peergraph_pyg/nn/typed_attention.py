"""GAT layers of several relations in a HeteroConv: one operation for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES, Relation, attention_fits, layers, supports
from peergraph.aggregate.layers import AttentionRelation, without_autocast
from peergraph.integration import Unsupported, is_explaining, note, require
from peergraph.memory import EncodedRows

from .. import compat
from ..data.csc_cache import typed_edges_of
from ..data.lazy_features import LazyRows, gathered, is_plain
from ..data.tailed_rows import TailedRows
from . import convs
from .features import kind_of
from .linear_maps import CAST_DTYPES, is_plain_map

EdgeType = tuple[str, str, str]


def joined_relations(
    relations: Iterable[tuple[EdgeType, Any]], x_dict: Any, edge_index_dict: Any
) -> dict[EdgeType, Any]:
    """Returns the layers of the relations that can run as one operation, at least two, or none.

    Args:
        relations: edge types and their layers.
        x_dict, edge_index_dict: the arguments of the HeteroConv.
    """
    by_kind: dict[_Kind, dict[EdgeType, Any]] = {}
    for edge_type, layer in relations:
        if edge_type in edge_index_dict:
            try:
                kind = _kind(layer, edge_index_dict[edge_type], *_ends(edge_type, x_dict))
            except Unsupported:
                continue
            by_kind.setdefault(kind, {})[edge_type] = layer
    if not by_kind:
        return {}
    kind, most = max(by_kind.items(), key=lambda item: len(item[1]))
    if len(most) < 2:
        return {}
    sample = torch.empty(0, kind.heads, kind.depth, dtype=kind.dtype, device=kind.device)
    return most if attention_fits(sample) else {}


class _Kind(NamedTuple):
    """What the relations of one operation have in common."""

    heads: int
    depth: int
    concat: bool
    negative_slope: float
    device: torch.device
    dtype: torch.dtype
    """Of products."""
    parameters: torch.dtype


def _ends(edge_type: EdgeType, x_dict: Any) -> tuple[Any, Any]:
    return x_dict.get(edge_type[0]), x_dict.get(edge_type[2])


def _kind(layer: Any, edges: Any, source: Any, destination: Any) -> _Kind:
    """Returns the kind of a relation; raises Unsupported if it runs alone."""
    require(type(layer) is convs.GATConv and not compat.has_hooks(layer), "another layer")
    require(layer._require_settings() == "sum", f"aggr is {layer.aggr}")
    layer._require_steps("propagate", "edge_updater", "forward")
    require(layer.res is None, "there is a residual")
    require(layer.dropout == 0 or not layer.training, "there is dropout of attention")
    require(is_plain(edges) and edges.dim() == 2 and edges.shape[0] == 2, "edges of another kind")
    require(edges.dtype in (torch.int32, torch.int64), f"edge_index is {edges.dtype}")
    vectors = layer.att_src, layer.att_dst
    for linear, vector, x in zip(_maps(layer), vectors, (source, destination), strict=True):
        require(is_plain(x) or type(x) is LazyRows, f"x is a {kind_of(x)}")
        require(x.dtype in FEATURE_DTYPES and x.dim() == 2, f"x is {x.dtype}, {list(x.shape)}")
        require(is_plain_map(linear) and linear.bias is None, "a map is the user's")
        require(is_plain(linear.weight) and is_plain(vector), "weights are of another kind")
        fits = linear.weight.shape[1] == x.shape[1] and linear.weight.dtype == vector.dtype
        require(fits and x.device == edges.device == vector.device, "weights do not fit")
    require(layer.bias is None or is_plain(layer.bias), "a bias is of another kind")
    require(supports(edges.device), f"x is on {edges.device}")
    parameters = vectors[0].dtype
    dtype = _product_dtype(edges.device, {source.dtype, destination.dtype}, parameters)
    return _Kind(
        layer.heads,
        layer.out_channels,
        layer.concat,
        layer.negative_slope,
        edges.device,
        dtype,
        parameters,
    )


def _maps(layer: Any) -> tuple[Any, Any]:
    """Returns the maps of sources and of destinations."""
    return (layer.lin, layer.lin) if layer.lin is not None else (layer.lin_src, layer.lin_dst)


def _product_dtype(
    device: torch.device, features: set[torch.dtype], parameters: torch.dtype
) -> torch.dtype:
    """Returns the dtype of products; raises Unsupported where dtypes differ without autocast."""
    if torch.is_autocast_enabled(device.type):
        require({*features, parameters} <= CAST_DTYPES, "autocast does not cast these dtypes")
        return torch.get_autocast_dtype(device.type)
    require(features == {parameters}, f"x is {features} and weights {parameters}")
    return parameters


def attention_sums(
    relations: Mapping[EdgeType, Any], x_dict: Any, edge_index_dict: Any
) -> dict[str, Tensor]:
    """Returns the sum of the results of :func:`joined_relations`, for each destination type."""
    used = {end for edge_type in relations for end in (edge_type[0], edge_type[2])}
    node_types = [node_type for node_type in x_dict if node_type in used]
    numbers = {node_type: i for i, node_type in enumerate(node_types)}
    sizes = [x_dict[node_type].shape[0] for node_type in node_types]
    edges = typed_edges_of(
        [
            _relation(layer, edge_index_dict[edge_type], sizes, numbers, edge_type)
            for edge_type, layer in relations.items()
        ],
        sizes,
    )
    first = next(iter(relations.values()))
    features = [_rows(x_dict[node_type]) for node_type in node_types]
    parameters = [
        AttentionRelation(
            numbers[edge_type[0]],
            numbers[edge_type[2]],
            _maps(layer)[0].weight,
            layer.att_src,
            _maps(layer)[1].weight,
            layer.att_dst,
        )
        for edge_type, layer in relations.items()
    ]
    dtype = _product_dtype(edges.device, {x.dtype for x in features}, first.att_src.dtype)
    sums = without_autocast(
        lambda: layers.typed_gat(
            edges, features, parameters, negative_slope=first.negative_slope, dtype=dtype
        )
    )
    if is_explaining():
        note(f"forward: peergraph, attention of {len(relations)} relations in one pass")
    results = {}
    for node_type in dict.fromkeys(edge_type[2] for edge_type in relations):
        biases = [layer.bias for edge_type, layer in relations.items() if edge_type[2] == node_type]
        out = sums[numbers[node_type]]
        out = out.flatten(1) if first.concat else out.mean(1)
        results[node_type] = _all_rows(out, biases, sizes[numbers[node_type]], first.att_src.dtype)
    return results


def _relation(
    layer: Any, edge_index: Tensor, sizes: list[int], numbers: dict[str, int], edge_type: EdgeType
) -> Relation:
    num_sources, destinations = sizes[numbers[edge_type[0]]], numbers[edge_type[2]]
    loops = min(num_sources, sizes[destinations]) if layer.add_self_loops else None
    return Relation(edge_index, num_sources, destinations, loops)


def _rows(x: Tensor) -> Tensor | EncodedRows:
    """Returns features as they are read: rows of narrow storage are not decoded."""
    if type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled()):
        encoded = x.encoded()
        return x.materialize() if encoded is None else encoded
    return gathered(x)


def _all_rows(
    first: Tensor, biases: list[Tensor | None], count: int, parameters: torch.dtype
) -> Tensor:
    """Returns the rows with the sum of the biases, and the biases alone in the rows that follow."""
    dtype, used = torch.promote_types(first.dtype, parameters), [b for b in biases if b is not None]
    if not used:
        return TailedRows.of(first.to(dtype), first.new_zeros(first.shape[1], dtype=dtype), count)
    bias = used[0] if len(used) == 1 else torch.stack(used).sum(0)
    return TailedRows.of(first + bias, bias, count)
