"""Full-batch models of PyG, and a graph as PyG's data."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from inputs.real_graphs import RealGraph
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

HIDDEN, LAYERS, HEADS = 16, 2, 2


def data_of(graph: RealGraph, dtype: torch.dtype) -> Any:
    """PyG's data."""
    if graph.is_typed:
        data: Any = HeteroData()
        for node_type, x in graph.x.items():
            data[node_type].x = x.to(dtype)
        for relation, ends in graph.edges.items():
            data[relation].edge_index = ends
        nodes = data[graph.target]
    else:
        (edges,) = graph.edges.values()
        (x,) = graph.x.values()
        data = nodes = Data(x=x.to(dtype), edge_index=edges)
        if graph.edge_type is not None:
            data.edge_type = graph.edge_type
    nodes.y, nodes.train_mask = graph.y, graph.masks["train"]
    return data


class Ready(nn.Module):
    """One of PyG's ready-made models."""

    def __init__(self, kind: str, graph: RealGraph, dropout: float, **options: Any) -> None:
        super().__init__()
        (x,) = graph.x.values()
        self.model = getattr(pyg, kind)(
            x.shape[1], HIDDEN, LAYERS, graph.classes, dropout=dropout, **options
        )

    def forward(self, data: Any) -> Tensor:
        out: Tensor = self.model(data.x, data.edge_index)
        return out


class Rgcn(nn.Module):
    """Layers with a weight for each type of edges, as sums of bases."""

    def __init__(self, graph: RealGraph, dropout: float) -> None:
        super().__init__()
        (x,) = graph.x.values()
        assert graph.edge_type is not None
        kinds = int(graph.edge_type.max()) + 1
        self.first = pyg.RGCNConv(x.shape[1], HIDDEN, kinds, num_bases=2)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.second = pyg.RGCNConv(HIDDEN, graph.classes, kinds)
        self.dropout = dropout

    def forward(self, data: Any) -> Tensor:
        h = self.norm(self.first(data.x, data.edge_index, data.edge_type)).relu()
        h = F.dropout(h, self.dropout, self.training)
        out: Tensor = self.second(h, data.edge_index, data.edge_type)
        return out


class Deep(nn.Module):
    """Eight residual layers, each normalised before it (DeeperGCN)."""

    def __init__(self, graph: RealGraph, dropout: float) -> None:
        super().__init__()
        (x,) = graph.x.values()
        self.encoder = nn.Linear(x.shape[1], HIDDEN)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(HIDDEN, HIDDEN, aggr="softmax", learn_t=True),
                nn.BatchNorm1d(HIDDEN),
                nn.ReLU(),
                block="res+",
                dropout=dropout,
            )
            for _ in range(8)
        )
        self.out = nn.Linear(HIDDEN, graph.classes)

    def forward(self, data: Any) -> Tensor:
        h = self.encoder(data.x)
        for layer in self.layers:
            h = layer(h, data.edge_index)
        logits: Tensor = self.out(h.relu())
        return logits


class _Sage(nn.Module):
    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.first = pyg.SAGEConv((-1, -1), HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.drop = nn.Dropout(dropout)
        self.second = pyg.SAGEConv((-1, -1), classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.drop(self.norm(self.first(x, edge_index)).relu())
        out: Tensor = self.second(h, edge_index)
        return out


class ToHetero(nn.Module):
    """`to_hetero` of two SAGE layers."""

    def __init__(self, graph: RealGraph, dropout: float) -> None:
        super().__init__()
        data, self.target = data_of(graph, torch.get_default_dtype()), graph.target
        self.net = pyg.to_hetero(_Sage(graph.classes, dropout), data.metadata())
        with torch.no_grad():
            self.net.eval()(data.x_dict, data.edge_index_dict)

    def forward(self, data: Any) -> Tensor:
        out: Tensor = self.net(data.x_dict, data.edge_index_dict)[self.target]
        return out


MODELS = {
    "GCN": lambda graph, p: Ready("GCN", graph, p, norm="batch_norm"),
    "SAGE": lambda graph, p: Ready("GraphSAGE", graph, p, jk="cat"),
    "GAT": lambda graph, p: Ready("GAT", graph, p, heads=HEADS),
    "GIN": lambda graph, p: Ready("GIN", graph, p, norm="batch_norm"),
    "RGCN": Rgcn,
    "deep": Deep,
    "to_hetero": ToHetero,
}
