"""DGL's HeteroGraphConv: GAT or GATv2 layers of its relations run as one operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import dgl.nn as dgl_nn
import torch
from dgl.nn.pytorch.hetero import get_aggregate_fn
from torch import Tensor

from peergraph.aggregate import (
    FEATURE_DTYPES,
    BlockPairs,
    Relation,
    TypedEdges,
    attention_fits,
    layers,
    supports,
)
from peergraph.aggregate.layers import AttentionRelation, DynamicRelation
from peergraph.integration import Unsupported, has_static_shapes, note, require

from ..backend.edge_list import EdgeList
from ..backend.materialize import materialize
from ..backend.message_passing import edge_lists_of
from .convs import GATConv, GATv2Conv
from .layer import check_scores, is_plain_module

_CACHE = "peergraph joined"


class HeteroGraphConv(dgl_nn.HeteroGraphConv):  # type: ignore[misc]
    """DGL's HeteroGraphConv. GAT layers of several relations run as one operation; on the CPU, so
    do GATv2 layers.
    """

    dgl_class = dgl_nn.HeteroGraphConv

    def forward(self, g: Any, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None) -> Any:
        """As DGL's."""
        try:
            require(not mod_args and not mod_kwargs, "there are arguments of relations")
            scale_by_count = _is_mean(self.agg_fn)
            calls = _calls(self, g, inputs)
            joined = _joined(calls)
        except Unsupported as reason:
            note(f"HeteroGraphConv: relation by relation, {reason}")
            return super().forward(g, inputs, mod_args, mod_kwargs)
        sums = _sums(g, joined)
        note(f"HeteroGraphConv: peergraph, attention of {len(joined)} relations in one pass")
        counts = Counter(call.target for call in calls)
        together = {call.number for call in joined}
        for call in calls:
            if call.number not in together:
                rows = call.layer(g[call.relation], (call.source_x, call.target_x))
                sums[call.target] = sums[call.target] + rows if call.target in sums else rows
        if scale_by_count:
            sums = {target: rows / counts[target] for target, rows in sums.items()}
        return {target: sums[target] for target in g.dsttypes if target in sums}


class _Call(NamedTuple):
    """The call of the layer of one relation."""

    number: int
    """Of the relation in the graph."""
    relation: tuple[str, str, str]
    layer: Any
    edges: Any
    source_x: Any
    target_x: Any

    @property
    def target(self) -> str:
        return self.relation[2]


class _Kind(NamedTuple):
    """What relations of one operation have in common."""

    is_dynamic: bool
    """GATv2."""
    has_biases: bool
    """Whether its maps have biases."""
    heads: int
    depth: int
    negative_slope: float
    dtype: torch.dtype
    device: torch.device


def _is_mean(aggregate: Any) -> bool:
    """Returns whether results are averaged over relations; raises Unsupported unless they are
    added.
    """
    for name in ("sum", "mean"):
        mean = get_aggregate_fn(name)
        same = getattr(aggregate, "func", None) is mean.func
        if same and aggregate.keywords == mean.keywords and not aggregate.args:
            return name == "mean"
    raise Unsupported("results of relations are neither added nor averaged")


def _calls(module: Any, g: Any, inputs: Any) -> list[_Call]:
    """Returns the calls that DGL would make, in its order; Unsupported where it raises."""
    if isinstance(inputs, tuple):
        require(len(inputs) == 2, "inputs are no pair")
        sources, targets = inputs
    elif g.is_block:
        sources = inputs
        targets = {key: rows[: g.number_of_dst_nodes(key)] for key, rows in inputs.items()}
    else:
        sources = targets = inputs
    require(isinstance(sources, Mapping) and isinstance(targets, Mapping), "inputs are no dicts")
    edge_lists = edge_lists_of(g._graph)
    calls = []
    for number, relation in enumerate(g.canonical_etypes):
        if relation[0] not in sources:
            continue
        if relation[2] not in targets:
            require(isinstance(inputs, tuple) or g.is_block, f"{relation[2]} has no features")
            continue
        layers, edges = module.mod_dict, edge_lists[number]
        layer = layers[relation] if relation in layers else layers[relation[1]]
        ends = sources[relation[0]], targets[relation[2]]
        calls.append(_Call(number, relation, layer, edges, *ends))
    return calls


def _joined(calls: Sequence[_Call]) -> list[_Call]:
    """Returns the calls that can run as one operation; raises Unsupported if there are none."""
    by_kind: dict[_Kind, list[_Call]] = {}
    for call in calls:
        if type(call.layer) not in (GATConv, GATv2Conv):
            continue
        try:
            by_kind.setdefault(_kind(call), []).append(call)
        except Unsupported as reason:
            note(f"HeteroGraphConv: {' '.join(call.relation)} alone, {reason}")
    most = max(by_kind.values(), key=len, default=[])
    require(len(most) > 1, "there are no GAT layers of the same kind")
    return most


def _kind(call: _Call) -> _Kind:
    """Returns the kind of a relation; raises Unsupported if it runs alone."""
    layer, edges = call.layer, call.edges
    require(type(edges) is EdgeList, "edges are partitioned")
    device = edges.device
    require(not torch.is_autocast_enabled(device.type), "there is autocast")
    is_dynamic = type(layer) is GATv2Conv
    runs = not is_dynamic or (device.type == "cpu" and not has_static_shapes())
    require(runs, "GATv2Conv has a kernel for each relation but on the CPU")
    require(is_plain_module(layer, type(layer)), "there are hooks of the layer")
    require(layer.activation is None and layer.res_fc is None, "there is a step after the sum")
    require(layer._allow_zero_in_degree, "nodes without edges are an error")
    check_scores(layer.leaky_relu, layer.attn_drop)
    require(not layer.training or layer.attn_drop.p == 0, "there is dropout of attention")
    require(is_plain_module(layer.feat_drop, torch.nn.Dropout), "features have the user's dropout")
    require(not layer.training or layer.feat_drop.p == 0, "there is dropout of features")
    dtype = (layer.attn if is_dynamic else layer.attn_l).dtype
    require(dtype in FEATURE_DTYPES, f"weights are {dtype}")
    ends = (call.source_x, edges.num_src), (call.target_x, edges.num_dst)
    for linear, (x, rows) in zip(_maps(layer), ends, strict=True):
        require(is_plain_module(linear, torch.nn.Linear), "a linear layer is modified or has hooks")
        require(isinstance(x, Tensor), "features are no tensor")
        shape = (rows, linear.weight.shape[1])
        if tuple(x.shape) != shape or x.dtype != dtype or x.device != device:
            raise Unsupported(f"features are {list(x.shape)}, {x.dtype} on {x.device}")
        for parameter in linear.parameters():
            require(parameter.dtype == dtype and parameter.device == device, "weights differ")
    has_biases = [linear.bias is not None for linear in _maps(layer)]
    if has_biases[0] != has_biases[1] or (has_biases[0] and not is_dynamic):
        raise Unsupported("a linear layer is modified or has hooks")
    heads, depth = layer._num_heads, layer._out_feats
    sample = torch.empty(0, heads, depth, dtype=dtype, device=device)
    require(supports(device) and attention_fits(sample), f"{heads} heads of {depth} do not fit")
    slope = layer.leaky_relu.negative_slope
    return _Kind(is_dynamic, has_biases[0], heads, depth, slope, dtype, device)


def _maps(layer: Any) -> tuple[Any, Any]:
    """Returns the maps of sources and of destinations."""
    return (layer.fc_src, layer.fc_dst) if hasattr(layer, "fc_src") else (layer.fc, layer.fc)


def _sums(g: Any, calls: Sequence[_Call]) -> dict[str, Tensor]:
    """Returns the sum of the results of the relations for each destination type."""
    rows: dict[int, Any] = {}
    for call in calls:
        rows |= {id(call.source_x): call.source_x, id(call.target_x): call.target_x}
    places = {key: place for place, key in enumerate(rows)}
    ends = [(places[id(call.source_x)], places[id(call.target_x)]) for call in calls]
    sizes = [len(x) for x in rows.values()]
    features = [materialize(x) for x in rows.values()]
    slope, is_dynamic = calls[0].layer.leaky_relu.negative_slope, type(calls[0].layer) is GATv2Conv
    relations: list[Any] = []
    for call, of_ends in zip(calls, ends, strict=True):
        layer, (first, second) = call.layer, _maps(call.layer)
        if is_dynamic:
            relations.append(
                DynamicRelation(
                    *of_ends, first.weight, second.weight, layer.attn, first.bias, second.bias
                )
            )
        else:
            relations.append(
                AttentionRelation(*of_ends, first.weight, layer.attn_l, second.weight, layer.attn_r)
            )
    if is_dynamic:
        pairs = _typed_edges(BlockPairs, g, calls, ends, sizes)
        sums = layers.typed_gatv2(pairs, features, relations, negative_slope=slope)
    else:
        edges = _typed_edges(TypedEdges, g, calls, ends, sizes)
        sums = layers.typed_gat(edges, features, relations, negative_slope=slope)
    results = {}
    for call, (_, target) in zip(calls, ends, strict=True):
        if call.target in results:
            continue
        into = [each.layer.bias for each in calls if each.target == call.target]
        biases = [bias for bias in into if isinstance(bias, Tensor)]  # that of GATv2 is a bool
        first = sums[target]
        last = first.new_zeros(first.shape[1:])
        if biases:
            last = layers.total_of(biases).view(first.shape[1:])
            first = first + last
        tail = last.expand(sizes[target] - len(first), *last.shape)
        results[call.target] = torch.cat([first, tail])
    return results


_Typed = TypeVar("_Typed", TypedEdges, BlockPairs)


def _typed_edges(
    kind: type[_Typed],
    g: Any,
    calls: Sequence[_Call],
    ends: Sequence[tuple[int, int]],
    sizes: Sequence[int],
) -> _Typed:
    """Returns the joined edges, made once for a graph, whose edges cannot change."""
    key = _CACHE, kind, tuple(call.number for call in calls), tuple(ends), tuple(sizes)
    structures, gradients = g._graph._cache, torch.is_grad_enabled()
    if key not in structures:
        relations = [
            Relation(
                torch.stack([call.edges.src, call.edges.dst]), sizes[source], target, None, source
            )
            for call, (source, target) in zip(calls, ends, strict=True)
        ]
        fixed = has_static_shapes()
        if fixed:  # sources need no rows
            targets = {target for _, target in ends}
            sizes = [size if i in targets else 0 for i, size in enumerate(sizes)]
        with torch.inference_mode(False):
            options = {"fixed": True} if fixed else {}
            structures[key] = kind(relations, sizes, gradients=gradients, **options)
    edges: _Typed = structures[key]
    return edges
