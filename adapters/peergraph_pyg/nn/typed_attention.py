"""Runs the GAT or GATv2 layers of all relations of a HeteroConv as one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import (
    BlockPairs,
    Relation,
    TypedEdges,
    attention_fits,
    layers,
    supports,
)
from peergraph.aggregate.layers import AttentionRelation, DynamicRelation, without_autocast
from peergraph.integration import Unsupported, has_static_shapes, is_explaining, note

from .. import compat
from ..data.csc_cache import typed_edges_of
from ..data.lazy_features import gathered, is_plain
from ..data.tailed_rows import TailedRows
from . import convs
from .features import kind_of
from .joined_layers import EdgeType, JoinedLayers, note_single_layers
from .linear_maps import ProductDtypes, is_plain_map, weight_and_bias
from .typed_inputs import is_edge_index, is_matrix, rows_to_read


def joined_attention(
    relations: Iterable[tuple[EdgeType, Any]], x_dict: Any, edge_index_dict: Any
) -> list[JoinedLayers]:
    """Returns the layers of relations that can run as one operation, at least two in each.

    Args:
        relations: edge types and their layers.
        x_dict, edge_index_dict: the arguments of the HeteroConv.
    """
    by_kind: dict[_Kind, dict[EdgeType, _Parameters]] = {}
    classes: set[type] = set()
    dtypes = ProductDtypes()
    for edge_type, layer in relations:
        if edge_type in edge_index_dict and type(layer) in (convs.GATConv, convs.GATv2Conv):
            ends = x_dict.get(edge_type[0]), x_dict.get(edge_type[2])
            try:
                if type(layer) not in classes:  # as often as there are classes, not relations
                    layer._require_class(*_STEPS)
                    classes.add(type(layer))
                kind, parameters = _kind(layer, edge_index_dict[edge_type], ends, dtypes)
            except Unsupported as reason:
                note(f"forward: {' '.join(edge_type)} alone, {reason}")
            else:
                by_kind.setdefault(kind, {})[edge_type] = parameters
    note_single_layers(by_kind.values())
    joined: list[JoinedLayers] = []
    for kind, layers_of_kind in by_kind.items():
        if len(layers_of_kind) > 1 and _fits(kind):
            joined.append(_JoinedAttention(layers_of_kind, kind, x_dict, edge_index_dict))
        elif len(layers_of_kind) > 1:
            note(
                f"forward: attention of {len(layers_of_kind)} relations alone, no kernel has "
                f"{kind.heads} heads of {kind.depth} columns"
            )
    return joined


_STEPS = ("propagate", "edge_updater", "forward")
"""The methods that a joined layer does not call."""


def _fits(kind: _Kind) -> bool:
    """Returns whether the kernel of attention runs for a kind."""
    sample = torch.empty(0, kind.heads, kind.depth, dtype=kind.dtype, device=kind.device)
    return supports(kind.device) and attention_fits(sample)


class _Kind(NamedTuple):
    """What the relations of one operation have in common."""

    is_dynamic: bool
    """GATv2."""
    has_biases: bool
    """Whether its maps have biases."""
    heads: int
    depth: int
    concat: bool
    negative_slope: float
    dropout: float
    device: torch.device
    dtype: torch.dtype
    """Of products."""
    parameters: torch.dtype


class _Parameters(NamedTuple):
    """The parameters of a relation. To ask a module for one takes as long as a launch."""

    of_relation: tuple[Any, ...]
    """What AttentionRelation or DynamicRelation takes after the node types."""
    bias: Tensor | None
    own_weight: Tensor | None
    """Of the destinations' own features."""
    adds_self_loops: bool


def _kind(
    layer: Any, edges: Any, ends: tuple[Any, Any], dtypes: ProductDtypes
) -> tuple[_Kind, _Parameters]:
    """Returns the kind of a relation, whose layer's class is supported, and its parameters; raises
    Unsupported if it runs alone. Conditions are written out: a model may have hundreds of layers.
    """
    if compat.has_hooks(layer):
        raise Unsupported("there are hooks of the layer")
    if not is_edge_index(edges):
        raise Unsupported(f"edge_index is a {kind_of(edges)}")
    loops, is_dynamic = layer.add_self_loops, type(layer) is convs.GATv2Conv
    device = edges.device
    if is_dynamic and (device.type != "cpu" or has_static_shapes()):
        # The kernel has one vector by which it multiplies the columns of all edges.
        raise Unsupported("GATv2Conv has a kernel for each relation but on the CPU")
    if loops and has_static_shapes():
        raise Unsupported("self loops are added, and the batch has a static shape")
    own, maps = layer._parameters, layer._modules
    names = ("att",) if is_dynamic else ("att_src", "att_dst")
    bias, vectors = own.get("bias"), [own.get(name) for name in names]
    if bias is not layer.bias or (bias is not None and not is_plain(bias)):
        raise Unsupported("the bias is of another kind")
    if layer._require_own_settings(steps=_STEPS) != "sum":
        raise Unsupported(f"aggr is {layer.aggr}")
    for vector in vectors:
        if vector is None or not is_plain(vector) or vector.device != device:
            raise Unsupported("attention vectors are of other kinds")
    parameters = vectors[0].dtype
    if vectors[-1].dtype != parameters:
        raise Unsupported("attention vectors are of other kinds")
    if is_dynamic:
        of_ends = maps.get("lin_l"), maps.get("lin_r")
    else:
        both = layer.lin
        of_ends = both or maps.get("lin_src"), both or maps.get("lin_dst")
    (weight, source_bias), (into, destination_bias) = (
        _map_of(linear, x, device, parameters) for linear, x in zip(of_ends, ends, strict=True)
    )
    has_biases = source_bias is not None
    if has_biases != (destination_bias is not None) or (has_biases and not is_dynamic):
        raise Unsupported("a map is the user's, or has hooks")
    of_relation: tuple[Any, ...] = (weight, vectors[0], into, vectors[-1])
    if is_dynamic:
        of_relation = (weight, into, vectors[0], source_bias, destination_bias)
    own_weight = None
    if layer.res is not None:
        own_weight, own_bias = _map_of(layer.res, ends[1], device, parameters)
        if own_bias is not None:
            raise Unsupported("a map is the user's, or has hooks")
    dtype = dtypes.of(device, parameters, ends[0].dtype, ends[1].dtype)
    if dtype is None:
        raise Unsupported(f"x is {ends[0].dtype} and {ends[1].dtype}, weights {parameters}")
    dropout = layer.dropout if layer.training else 0.0
    kind = _Kind(
        is_dynamic,
        has_biases,
        layer.heads,
        layer.out_channels,
        layer.concat,
        layer.negative_slope,
        dropout,
        device,
        dtype,
        parameters,
    )
    return kind, _Parameters(of_relation, bias, own_weight, loops)


def _map_of(
    linear: Any, x: Any, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Returns weight and bias of a map of features; raises Unsupported unless it is PyG's own."""
    if not is_matrix(x) or x.device != device:
        raise Unsupported(f"x is a {kind_of(x)}")
    if not is_plain_map(linear):
        raise Unsupported("a map is the user's, or has hooks")
    weight, bias = weight_and_bias(linear)
    fits = is_plain(weight) and weight.shape[1] == x.shape[1] and weight.device == device
    if not fits or weight.dtype != dtype:
        raise Unsupported("weights do not fit")
    if bias is not None and not (is_plain(bias) and bias.device == device and bias.dtype == dtype):
        raise Unsupported("the bias is of another kind")
    return weight, bias


class _JoinedAttention(JoinedLayers):
    """GAT or GATv2 layers of one kind.

    Args:
        layers: the parameters of the layers by edge type.
        kind: what they have in common.
        x_dict, edge_index_dict: the arguments of the HeteroConv.
    """

    layers: Mapping[EdgeType, _Parameters]

    def __init__(
        self, layers: Mapping[EdgeType, _Parameters], kind: _Kind, x_dict: Any, edge_index_dict: Any
    ) -> None:
        super().__init__(layers)
        self._kind, self._arguments = kind, (x_dict, edge_index_dict)

    def sums(self, scales: Mapping[str, float]) -> dict[str, Tensor]:
        by_type: dict[str, list[_Parameters]] = {}
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
        kind, relations, (x_dict, edge_index_dict) = self._kind, self.layers, self._arguments
        used = {end for edge_type in relations for end in (edge_type[0], edge_type[2])}
        node_types = [node_type for node_type in x_dict if node_type in used]
        numbers = {node_type: i for i, node_type in enumerate(node_types)}
        sizes = [x_dict[node_type].shape[0] for node_type in node_types]
        of_edges: list[Relation] = []
        parameters: list[tuple[Any, ...]] = []
        for edge_type, layer in relations.items():
            source, destination = numbers[edge_type[0]], numbers[edge_type[2]]
            loops = min(sizes[source], sizes[destination]) if layer.adds_self_loops else None
            edges = edge_index_dict[edge_type]
            of_edges.append(Relation(edges, sizes[source], destination, loops, source))
            parameters.append((source, destination, *layer.of_relation))
        features = [rows_to_read(x_dict[node_type]) for node_type in node_types]
        options: dict[str, Any] = {
            "negative_slope": kind.negative_slope,
            "dropout": kind.dropout,
            "dtype": kind.dtype,
            "added": added,
            "concat": kind.concat,
        }
        run: Callable[..., list[Tensor]]
        if kind.is_dynamic:
            pairs = typed_edges_of(BlockPairs, of_edges, sizes)
            dynamic = [DynamicRelation(*each) for each in parameters]
            run = partial(layers.typed_gatv2, pairs, features, dynamic)
        else:
            structure = typed_edges_of(TypedEdges, of_edges, sizes)
            static = [AttentionRelation(*each) for each in parameters]
            run = partial(layers.typed_gat, structure, features, static)
        results = without_autocast(lambda: run(**options))
        if is_explaining():
            note(f"forward: peergraph, attention of {len(relations)} relations in one pass")
        return results, numbers

    def _result(
        self, node_type: str, layers_of_type: Sequence[_Parameters], sums: Tensor
    ) -> Tensor:
        """Returns all rows of the sum of some layers' results, given the sums over edges."""
        x = self._arguments[0][node_type]
        out = sums if self._kind.concat else sums.mean(1)
        biases = [layer.bias for layer in layers_of_type]
        rows = _all_rows(out, biases, x.shape[0], self._kind.parameters)
        maps = [layer.own_weight for layer in layers_of_type if layer.own_weight is not None]
        if maps:
            rows = rows + F.linear(gathered(x), layers.total_of(maps))
        return rows


def _all_rows(
    first: Tensor, biases: list[Tensor | None], count: int, parameters: torch.dtype
) -> Tensor:
    """Returns the rows with the sum of the biases, and the biases alone in the rows that follow."""
    used = [b for b in biases if b is not None]
    if not used:
        dtype = torch.promote_types(first.dtype, parameters)
        return TailedRows.of(first.to(dtype), first.new_zeros(first.shape[1], dtype=dtype), count)
    bias = layers.total_of(used)
    return TailedRows.of(first + bias, bias, count)
