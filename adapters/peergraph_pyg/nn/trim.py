"""Keeps PyG's models from computing hidden rows of a mini-batch that no later layer reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN

from ..compat import (
    TrimToLayer,
    compiles_layers,
    has_forward_hooks,
    model_trim,
    trim_adj,
    trim_feat,
)
from ..data.lazy_features import LazyRows
from . import convs
from .features import first_rows

# Layers whose result does not change if destinations are given as the second of a pair.
_PAIRED = (
    convs.SAGEConv,
    convs.GINConv,
    convs.GATConv,
    convs.GATv2Conv,
)


class FastTrim(TrimToLayer):  # type: ignore[misc]
    """PyG's ``TrimToLayer``, which here makes the rows that remain the layer's destinations.

    PyG computes a layer for all of its nodes, and then drops the rows of the outermost hop, which
    are most of the batch. Here the layer gets a pair: all nodes as sources, the remaining nodes as
    destinations. The last layer gets the same as in PyG.
    """

    trimmed_layers: list[bool]

    def __prepare_scriptable__(self) -> TrimToLayer:
        """TorchScript compiles PyG's."""
        return TrimToLayer()

    @torch.jit.unused
    def forward(
        self,
        layer: int,
        num_sampled_nodes_per_hop: list[int] | None,
        num_sampled_edges_per_hop: list[int] | None,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
    ) -> tuple[Any, Any, Tensor | None]:
        """As PyG's, for rows that may have been trimmed by the layer before."""
        nodes, edges = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
        plain = type(x) in (Tensor, LazyRows) and type(edge_index) is Tensor
        few_hops = isinstance(edges, list) and len(edges) < len(self.trimmed_layers)
        if not plain or not isinstance(nodes, list) or few_hops or not compiles_layers():
            result: tuple[Any, Any, Tensor | None] = super().forward(
                layer, nodes, edges, x, edge_index, edge_attr
            )
            return result
        last = len(nodes) - layer
        num_nodes = sum(nodes[:last])
        if x.shape[0] != num_nodes:
            x = trim_feat(x, layer, nodes)
        edge_index = trim_adj(edge_index, layer, nodes, nodes, edges)
        if edge_attr is not None:
            edge_attr = trim_feat(edge_attr, layer, edges)
        if self.trimmed_layers[layer] and x.shape[0] == num_nodes:
            return (x, first_rows(x, sum(nodes[: last - 1]))), edge_index, edge_attr
        return x, edge_index, edge_attr


def enable_trim(model: BasicGNN) -> None:
    """Gives a model of accelerated layers a :class:`FastTrim` where that changes no result."""
    layers = list(zip(model.convs, model.norms, strict=True))
    alone = not hasattr(model, "jk") and type(model_trim(model)) is TrimToLayer
    if not alone:
        return
    trim = model_trim(model)
    trim.__class__ = FastTrim
    trim.trimmed_layers = [
        # A norm may read all rows, and a hook reads the layer's arguments.
        type(conv) in _PAIRED and type(norm) is torch.nn.Identity and not has_forward_hooks(conv)
        for conv, norm in layers[:-1]
    ] + [False]


def disable_trim(model: BasicGNN) -> None:
    """Undoes :func:`enable_trim`."""
    trim = model_trim(model)
    if type(trim) is FastTrim:
        trim.__class__ = TrimToLayer
        del trim.trimmed_layers
