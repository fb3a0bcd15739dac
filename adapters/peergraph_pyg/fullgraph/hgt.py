"""PyG's HGTConv on a partitioned graph, relation by relation.

PyG joins all types of nodes and edges into one graph, whose numbers of nodes are no partition's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import HGTConv

from peergraph.autograd import Function
from peergraph.fullgraph import PartitionedEdgeIndex, joint_softmax

from .. import compat

_STEPS = ("message", "aggregate", "update", "propagate")


def hgt(
    original: Callable[..., Any], layer: Any, x_dict: dict[str, Any], edge_index_dict: Any
) -> Any:
    """As PyG's ``HGTConv.forward``; of a partitioned graph, the same result. Collective then."""
    if not any(isinstance(edges, PartitionedEdgeIndex) for edges in edge_index_dict.values()):
        return original(layer, x_dict, edge_index_dict)
    _check(layer)
    heads, depth = layer.heads, layer.out_channels // layer.heads
    keys, queries, values = {}, {}, {}
    projections = layer.kqv_lin(x_dict)
    for node_type, rows in projections.items():
        parts = torch.tensor_split(rows, 3, dim=1)
        keys[node_type], queries[node_type], values[node_type] = (
            part.view(-1, heads, depth) for part in parts
        )
    structures: dict[str, list[Any]] = {}
    scores: dict[str, list[Tensor]] = {}
    messages: dict[str, list[Tensor]] = {}
    for edge_type, edge_index in edge_index_dict.items():
        source, _, target = edge_type
        structure = edge_index.structure
        weights = torch.arange(heads) * len(layer.edge_types) + layer.edge_types_map[edge_type]
        dots = structure.sddmm(
            "dot", _by_head(keys[source], layer.k_rel.weight[weights]), queries[target]
        )
        dots = dots * layer.p_rel["__".join(edge_type)] / math.sqrt(depth)
        structures.setdefault(target, []).append(structure)
        scores.setdefault(target, []).append(dots)
        rows = _by_head(values[source], layer.v_rel.weight[weights])
        messages.setdefault(target, []).append(rows)
    priors = [layer.p_rel["__".join(edge_type)] for edge_type in edge_index_dict]
    by_type: dict[str, Tensor] = {}
    for node_type, query in queries.items():
        if node_type not in layer.dst_node_types:
            continue
        out = torch.zeros_like(query)
        if node_type in structures:
            relations = structures[node_type]
            shares = joint_softmax(relations, scores[node_type])
            for structure, rows, share in zip(relations, messages[node_type], shares, strict=True):
                out = out + structure.spmm("mul", "sum", rows, share)
        by_type[node_type] = _ReadAll.apply(out.flatten(1), *projections.values(), *priors)
    projected = layer.out_lin({key: F.gelu(rows) for key, rows in by_type.items()})
    for node_type in by_type:
        out = projected[node_type]
        if out.shape[-1] == x_dict[node_type].shape[-1]:
            share = layer.skip[node_type].sigmoid()
            out = share * out + (1 - share) * x_dict[node_type]
        by_type[node_type] = out
    return by_type


class _ReadAll(Function):
    """Returns the first tensor; gradients of the others are zeros, as of PyG's joined graph.

    An optimizer treats a parameter without a gradient in another way.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, *others: Tensor) -> Tensor:
        ctx.others = others
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *(torch.zeros_like(other) for other in ctx.others)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies each head [nodes, heads, depth] by its matrix [heads, depth, depth]."""
    return (x.transpose(0, 1) @ weight).transpose(0, 1)


def _check(layer: Any) -> None:
    cls = type(layer)
    # PyG's class, or the one that `accelerate` sets.
    original = next(c for c in cls.__mro__ if c is HGTConv or "pyg_class" in vars(c))
    changed = next(
        (name for name in _STEPS if getattr(cls, name) is not getattr(original, name)),
        compat.step_hook(layer),
    )
    if changed is not None or type(layer.aggr_module) is not SumAggregation:
        raise NotImplementedError(
            f"HGTConv with another {changed or 'aggregation'} on a partitioned graph, where it is "
            "computed relation by relation"
        )
