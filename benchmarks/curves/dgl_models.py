"""Full-batch models of DGL, and a graph as DGL's graph."""

from __future__ import annotations

from typing import Any

import peergraph_dgl  # noqa: F401  (so that DGL can be imported)

# isort: split

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from inputs.real_graphs import RealGraph
from torch import Tensor, nn

HIDDEN, HEADS = 16, 2


def graph_of(graph: RealGraph, dtype: torch.dtype) -> Any:
    """DGL's graph, with self loops where it has one relation."""
    if graph.is_typed:
        edges = {relation: (ends[0], ends[1]) for relation, ends in graph.edges.items()}
        counts = {t: x.shape[0] for t, x in graph.x.items()}
        g = dgl.heterograph(edges, num_nodes_dict=counts)
        for node_type, x in graph.x.items():
            g.nodes[node_type].data["feat"] = x.to(dtype)
        data = g.nodes[graph.target].data
    else:
        (ends,), (x,) = graph.edges.values(), graph.x.values()
        loops = torch.arange(x.shape[0])
        ends = torch.cat([ends, torch.stack([loops, loops])], 1)
        kinds = graph.edge_type
        if kinds is not None:
            kinds = torch.cat([kinds, kinds.max().expand(x.shape[0])])
        g = dgl.graph((ends[0], ends[1]), num_nodes=x.shape[0])
        if kinds is not None:
            g.edata["type"] = kinds
        g.ndata["feat"], data = x.to(dtype), g.ndata
    data["label"], data["train"] = graph.y, graph.masks["train"]
    return g


class Layers(nn.Module):
    """Two convolutions, with a norm, ReLU and dropout between them."""

    def __init__(
        self, first: nn.Module, second: nn.Module, dropout: float, by_type: bool = False
    ) -> None:
        super().__init__()
        self.first, self.second, self.by_type = first, second, by_type
        self.norm = nn.LazyBatchNorm1d()
        self.dropout = dropout

    def forward(self, g: Any) -> Tensor:
        more = [g.edata["type"]] if self.by_type else []
        h = self.norm(self.first(g, g.ndata["feat"], *more).flatten(1)).relu()
        h = F.dropout(h, self.dropout, self.training)
        out: Tensor = self.second(g, h, *more)
        return out.mean(1) if out.dim() == 3 else out


class Deep(nn.Module):
    """Eight residual layers, each normalised before it."""

    def __init__(self, graph: RealGraph, dropout: float) -> None:
        super().__init__()
        self.into = nn.Linear(_width(graph), HIDDEN)
        self.convs = nn.ModuleList(dglnn.SAGEConv(HIDDEN, HIDDEN, "mean") for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN) for _ in range(8))
        self.out = nn.Linear(HIDDEN, graph.classes)
        self.dropout = dropout

    def forward(self, g: Any) -> Tensor:
        h = self.into(g.ndata["feat"])
        for conv, norm in zip(self.convs, self.norms, strict=True):
            more = F.dropout(norm(h).relu(), self.dropout, self.training)
            h = h + conv(g, more)
        out: Tensor = self.out(h)
        return out


class Hetero(nn.Module):
    """A layer for each relation, summed (R-GCN over typed relations)."""

    def __init__(self, graph: RealGraph, dropout: float) -> None:
        super().__init__()
        names = [name for _, name, _ in graph.edges]
        widths = {t: x.shape[1] for t, x in graph.x.items()}
        first = {
            name: dglnn.SAGEConv((widths[source], widths[destination]), HIDDEN, "mean")
            for source, name, destination in graph.edges
        }
        second = {name: dglnn.SAGEConv(HIDDEN, graph.classes, "mean") for name in names}
        self.first, self.second = dglnn.HeteroGraphConv(first), dglnn.HeteroGraphConv(second)
        self.norms = nn.ModuleDict({t: nn.BatchNorm1d(HIDDEN) for t in widths})
        self.target, self.dropout = graph.target, dropout

    def forward(self, g: Any) -> Tensor:
        h = self.first(g, {t: g.nodes[t].data["feat"] for t in g.ntypes})
        h = {t: self.norms[t](rows).relu() for t, rows in h.items()}
        h = {t: F.dropout(rows, self.dropout, self.training) for t, rows in h.items()}
        out: Tensor = self.second(g, h)[self.target]
        return out


def _width(graph: RealGraph) -> int:
    (x,) = graph.x.values()
    return int(x.shape[1])


def _kinds(graph: RealGraph) -> int:
    assert graph.edge_type is not None
    return int(graph.edge_type.max()) + 1


MODELS = {
    "GCN": lambda graph, p: Layers(
        dglnn.GraphConv(_width(graph), HIDDEN), dglnn.GraphConv(HIDDEN, graph.classes), p
    ),
    "SAGE": lambda graph, p: Layers(
        dglnn.SAGEConv(_width(graph), HIDDEN, "mean"),
        dglnn.SAGEConv(HIDDEN, graph.classes, "gcn"),
        p,
    ),
    "GAT": lambda graph, p: Layers(
        dglnn.GATConv(_width(graph), HIDDEN, HEADS),
        dglnn.GATConv(HIDDEN * HEADS, graph.classes, 1),
        p,
    ),
    "GIN": lambda graph, p: Layers(
        dglnn.GINConv(nn.Linear(_width(graph), HIDDEN), learn_eps=True),
        dglnn.GINConv(nn.Linear(HIDDEN, graph.classes), "max"),
        p,
    ),
    "RGCN": lambda graph, p: Layers(
        dglnn.RelGraphConv(_width(graph), HIDDEN, _kinds(graph), "basis", 2),
        dglnn.RelGraphConv(HIDDEN, graph.classes, _kinds(graph), "basis", 2),
        p,
        by_type=True,
    ),
    "deep": Deep,
    "to_hetero": Hetero,
}
