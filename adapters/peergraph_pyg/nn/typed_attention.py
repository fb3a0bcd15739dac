"""Runs the GAT layers of all relations of a HeteroConv as one operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import (
    Relation,
    TypedEdges,
    attention_fits,
    layers,
    supports,
)
from peergraph.aggregate.layers import AttentionRelation, without_autocast
from peergraph.integration import Unsupported, has_static_shapes, is_explaining, note, require

from .. import compat
from ..data.csc_cache import typed_edges_of
from ..data.lazy_features import gathered, is_plain
from ..data.tailed_rows import TailedRows
from . import convs
from .features import kind_of
from .joined_layers import EdgeType, JoinedLayers, note_single_layers
from .linear_maps import is_plain_map, product_dtype, weight_and_bias
from .typed_inputs import is_edge_index, is_matrix, rows_to_read


def joined_attention(
    relations: Iterable[tuple[EdgeType, Any]], x_dict: Any, edge_index_dict: Any
) -> list[JoinedLayers]:
    """Returns the layers of relations that can run as one operation, at least two in each.

    Args:
        relations: edge types and their layers.
        x_dict, edge_index_dict: the arguments of the HeteroConv.
    """
    by_kind: dict[_Kind, dict[EdgeType, Any]] = {}
    for edge_type, layer in relations:
        if edge_type in edge_index_dict and type(layer) is convs.GATv2Conv:
            # The kernel has one vector by which it multiplies the columns of all edges.
            note(f"forward: {' '.join(edge_type)} alone, GATv2Conv has a kernel for each relation")
        elif edge_type in edge_index_dict and type(layer) is convs.GATConv:
            ends = x_dict.get(edge_type[0]), x_dict.get(edge_type[2])
            try:
                kind = _kind(layer, edge_index_dict[edge_type], ends)
            except Unsupported as reason:
                note(f"forward: {' '.join(edge_type)} alone, {reason}")
            else:
                by_kind.setdefault(kind, {})[edge_type] = layer
    note_single_layers(by_kind.values())
    joined: list[JoinedLayers] = []
    for kind, layers_of_kind in by_kind.items():
        if len(layers_of_kind) > 1 and _fits(kind):
            joined.append(_JoinedAttention(layers_of_kind, x_dict, edge_index_dict))
        elif len(layers_of_kind) > 1:
            note(
                f"forward: attention of {len(layers_of_kind)} relations alone, no kernel has "
                f"{kind.heads} heads of {kind.depth} columns"
            )
    return joined


def _fits(kind: _Kind) -> bool:
    """Returns whether the kernel of attention runs for a kind."""
    sample = torch.empty(0, kind.heads, kind.depth, dtype=kind.dtype, device=kind.device)
    return supports(kind.device) and attention_fits(sample)


class _Kind(NamedTuple):
    """What the relations of one operation have in common."""

    heads: int
    depth: int
    concat: bool
    negative_slope: float
    dropout: float
    device: torch.device
    dtype: torch.dtype
    """Of products."""
    parameters: torch.dtype


def _kind(layer: Any, edges: Any, ends: tuple[Any, Any]) -> _Kind:
    """Returns the kind of a relation; raises Unsupported if it runs alone."""
    require(not compat.has_hooks(layer), "there are hooks of the layer")
    require(is_edge_index(edges), f"edge_index is a {kind_of(edges)}")
    loops = layer.add_self_loops and has_static_shapes()
    require(not loops, "self loops are added, and the batch has a static shape")
    require(layer.bias is None or is_plain(layer.bias), "the bias is of another kind")
    require(layer._require_settings() == "sum", f"aggr is {layer.aggr}")
    layer._require_steps("propagate", "edge_updater", "forward")
    device, vectors = edges.device, (layer.att_src, layer.att_dst)
    parameters = vectors[0].dtype
    maps = list(zip(_maps(layer), ends, strict=True))
    for vector in vectors:
        plain = is_plain(vector) and vector.dtype == parameters and vector.device == device
        require(plain, "attention vectors are of other kinds")
    if layer.res is not None:
        maps.append((layer.res, ends[1]))
    for linear, x in maps:
        require(is_matrix(x) and x.device == device, f"x is a {kind_of(x)}")
        weight, bias = weight_and_bias(linear)
        require(is_plain_map(linear) and bias is None, "a map is the user's, or has hooks")
        fits = is_plain(weight) and weight.shape[1] == x.shape[1] and weight.device == device
        require(fits and weight.dtype == parameters, "weights do not fit")
    dtype = product_dtype(device, parameters, ends[0].dtype, ends[1].dtype)
    if dtype is None:
        raise Unsupported(f"x is {ends[0].dtype} and {ends[1].dtype}, weights {parameters}")
    dropout = layer.dropout if layer.training else 0.0
    return _Kind(
        layer.heads,
        layer.out_channels,
        layer.concat,
        layer.negative_slope,
        dropout,
        device,
        dtype,
        parameters,
    )


def _maps(layer: Any) -> tuple[Any, Any]:
    """Returns the maps of sources and of destinations."""
    return (layer.lin, layer.lin) if layer.lin is not None else (layer.lin_src, layer.lin_dst)


class _JoinedAttention(JoinedLayers):
    """GAT layers of one kind.

    Args:
        layers: by edge type.
        x_dict, edge_index_dict: the arguments of the HeteroConv.
    """

    def __init__(self, layers: Mapping[EdgeType, Any], x_dict: Any, edge_index_dict: Any) -> None:
        super().__init__(layers)
        self._arguments = x_dict, edge_index_dict

    def sums(self, scales: Mapping[str, float]) -> dict[str, Tensor]:
        by_type: dict[str, list[Any]] = {}
        for edge_type, layer in self.layers.items():
            by_type.setdefault(edge_type[2], []).append(layer)
        results, numbers = self._attend(added=True)
        totals = {}
        for node_type, layers_of_type in by_type.items():
            rows = self._result(node_type, layers_of_type, results[numbers[node_type]])
            scale = scales[node_type]
            totals[node_type] = rows if scale == 1 else rows * scale
        return totals

    def apart(self) -> dict[EdgeType, Tensor]:
        results, _ = self._attend(added=False)
        return {
            edge_type: self._result(edge_type[2], [layer], rows)
            for (edge_type, layer), rows in zip(self.layers.items(), results, strict=True)
        }

    def _attend(self, added: bool) -> tuple[list[Tensor], dict[str, int]]:
        """Returns the sums over edges as ``layers.typed_gat``, and the number of each node type."""
        relations, (x_dict, edge_index_dict) = self.layers, self._arguments
        used = {end for edge_type in relations for end in (edge_type[0], edge_type[2])}
        node_types = [node_type for node_type in x_dict if node_type in used]
        numbers = {node_type: i for i, node_type in enumerate(node_types)}
        sizes = [x_dict[node_type].shape[0] for node_type in node_types]
        edges = typed_edges_of(
            TypedEdges,
            [
                _relation(layer, edge_index_dict[edge_type], sizes, numbers, edge_type)
                for edge_type, layer in relations.items()
            ],
            sizes,
        )
        first = next(iter(relations.values()))
        features = [rows_to_read(x_dict[node_type]) for node_type in node_types]
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
        dtype = product_dtype(edges.device, first.att_src.dtype, *(x.dtype for x in features))
        results = without_autocast(
            lambda: layers.typed_gat(
                edges,
                features,
                parameters,
                negative_slope=first.negative_slope,
                dropout=first.dropout if first.training else 0.0,
                dtype=dtype,
                added=added,
            )
        )
        if is_explaining():
            note(f"forward: peergraph, attention of {len(relations)} relations in one pass")
        return results, numbers

    def _result(self, node_type: str, layers_of_type: Sequence[Any], sums: Tensor) -> Tensor:
        """Returns all rows of the sum of some layers' results, given the sums over edges."""
        first, x = layers_of_type[0], self._arguments[0][node_type]
        out = sums.flatten(1) if first.concat else sums.mean(1)
        biases = [layer.bias for layer in layers_of_type]
        rows = _all_rows(out, biases, x.shape[0], first.att_src.dtype)
        maps = [layer.res.weight for layer in layers_of_type if layer.res is not None]
        if maps:
            rows = rows + F.linear(gathered(x), layers.total_of(maps))
        return rows


def _relation(
    layer: Any, edge_index: Tensor, sizes: list[int], numbers: dict[str, int], edge_type: EdgeType
) -> Relation:
    num_sources, destinations = sizes[numbers[edge_type[0]]], numbers[edge_type[2]]
    loops = min(num_sources, sizes[destinations]) if layer.add_self_loops else None
    return Relation(edge_index, num_sources, destinations, loops)


def _all_rows(
    first: Tensor, biases: list[Tensor | None], count: int, parameters: torch.dtype
) -> Tensor:
    """Returns the rows with the sum of the biases, and the biases alone in the rows that follow."""
    dtype, used = torch.promote_types(first.dtype, parameters), [b for b in biases if b is not None]
    if not used:
        return TailedRows.of(first.to(dtype), first.new_zeros(first.shape[1], dtype=dtype), count)
    bias = layers.total_of(used)
    return TailedRows.of(first + bias, bias, count)
