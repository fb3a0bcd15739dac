"""Models of PyG on mini-batches: hidden rows that no later layer reads are not computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN

from ..compat import TrimToLayer, has_forward_hooks, model_trim, trim_adj, trim_feat
from ..data.lazy_features import LazyRows
from . import attention_convs, convs
from .projected import first_rows

# Layers that take features of sources and of destinations, and give the same for the pair.
_PAIRED = (
    convs.SAGEConv,
    convs.GINConv,
    attention_convs.GATConv,
    attention_convs.GATv2Conv,
)


class FastTrim(TrimToLayer):  # type: ignore[misc]
    """PyG's ``TrimToLayer`` of a model, whose layers get as destinations the rows that remain.

    PyG computes a layer for all its nodes and drops the outermost hop's from the result, most of
    the batch, before the next layer. Here the layer gets a pair: all nodes as sources, those that
    remain as destinations. The last layer's result is as PyG's.
    """

    narrow_layers: list[bool]

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
        few_hops = isinstance(edges, list) and len(edges) < len(self.narrow_layers)
        if not plain or not isinstance(nodes, list) or few_hops or torch.compiler.is_compiling():
            result: tuple[Any, Any, Tensor | None] = super().forward(
                layer, nodes, edges, x, edge_index, edge_attr
            )
            return result
        last = len(nodes) - layer
        wanted = sum(nodes[:last])
        if x.shape[0] != wanted:
            x = trim_feat(x, layer, nodes)
        edge_index = trim_adj(edge_index, layer, nodes, nodes, edges)
        if edge_attr is not None:
            edge_attr = trim_feat(edge_attr, layer, edges)
        if self.narrow_layers[layer] and x.shape[0] == wanted:
            return (x, first_rows(x, sum(nodes[: last - 1]))), edge_index, edge_attr
        return x, edge_index, edge_attr


def narrow(model: BasicGNN) -> None:
    """Gives a model of accelerated layers a :class:`FastTrim`, where it changes no result."""
    layers = list(zip(model.convs, model.norms, strict=True))
    alone = not hasattr(model, "jk") and type(model_trim(model)) is TrimToLayer
    if not alone:
        return
    trim = model_trim(model)
    trim.__class__ = FastTrim
    trim.narrow_layers = [
        # A norm may look at all rows, and a hook at what the layer gets.
        type(conv) in _PAIRED and type(norm) is torch.nn.Identity and not has_forward_hooks(conv)
        for conv, norm in layers[:-1]
    ] + [False]


def widen(model: BasicGNN) -> None:
    """Undoes :func:`narrow`."""
    trim = model_trim(model)
    if type(trim) is FastTrim:
        trim.__class__ = TrimToLayer
        del trim.narrow_layers
