"""PyG's models over batches of several types: R-GAT as in MLPerf's reference, and its kin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, HeteroConv, HGTConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from rgat_shape.graph import TypedGraph

_HEADS, _DROPOUT = 4, 0.2


def _relational_gat(
    graph: TypedGraph, fan_in: int, hidden: int, kind: type[torch.nn.Module] = GATConv
) -> torch.nn.Module:
    def conv() -> torch.nn.Module:
        ends = (fan_in, fan_in)
        return kind(ends, hidden // _HEADS, heads=_HEADS, add_self_loops=False, concat=True)

    return HeteroConv({t: conv() for t in graph.edge_types}, aggr="sum")


def _relational_sage(graph: TypedGraph, fan_in: int, hidden: int) -> torch.nn.Module:
    return HeteroConv({t: SAGEConv((fan_in, fan_in), hidden) for t in graph.edge_types}, aggr="sum")


def _hgt(graph: TypedGraph, fan_in: int, hidden: int) -> torch.nn.Module:
    return HGTConv(fan_in, hidden, (list(graph.nodes), graph.edge_types), heads=_HEADS)


def _relational_gcn(graph: TypedGraph, fan_in: int, hidden: int) -> torch.nn.Module:
    """R-GCN: a matrix for each relation after the mean, and one for each type's own rows: that of
    the first relation into the type.
    """
    firsts = {t[2]: t for t in reversed(graph.edge_types)}.values()

    def conv(is_first: bool) -> SAGEConv:
        ends = (fan_in, fan_in)
        return SAGEConv(ends, hidden, root_weight=is_first, bias=is_first)

    return HeteroConv({t: conv(t in firsts) for t in graph.edge_types}, aggr="sum")


MODELS: dict[str, Callable[[TypedGraph, int, int], torch.nn.Module]] = {
    "rgat": _relational_gat,
    "rgatv2": partial(_relational_gat, kind=GATv2Conv),
    "rsage": _relational_sage,
    "rgcn": _relational_gcn,
    "hgt": _hgt,
}
"""By model: a function of the graph, the input width and the hidden width that makes a layer."""


LAYERS = {"accelerated": ["accelerated"], "pyg": ["pyg"], "both": ["accelerated", "pyg"]}
"""The values of ``--layers``, and the libraries whose layers each of them measures."""


class TypedModel(torch.nn.Module):
    """Layers with leaky ReLU and dropout between, and a linear layer to classes of the seeds."""

    def __init__(self, graph: TypedGraph, kind: str, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.target = graph.target
        widths = [graph.columns, *[hidden] * (num_layers - 1)]
        self.convs = torch.nn.ModuleList(MODELS[kind](graph, width, hidden) for width in widths)
        self.classify = torch.nn.Linear(hidden, graph.classes)

    def forward(self, batch: Any) -> Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        nodes_by_hop, edges_by_hop = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(layer, nodes_by_hop, edges_by_hop, x, edges)
            x = conv(x, edges)
            if layer < len(self.convs) - 1:
                x = {
                    t: F.dropout(F.leaky_relu(rows), _DROPOUT, self.training)
                    for t, rows in x.items()
                }
        return self.classify(x[self.target][: batch[self.target].batch_size])


def loss_of(model: torch.nn.Module, target: str, batch: Any) -> Tensor:
    """The loss of a batch."""
    seeds = batch[target]
    return F.cross_entropy(model(batch), seeds.y[: seeds.batch_size])
