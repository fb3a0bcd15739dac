"""Models of PyG on a partitioned graph: ready-made, heterogeneous, and written by users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from .graphs import CLASSES, WIDTH, small_graph, small_hetero
from .ranks import check_model, shared

HIDDEN = 8


class DeepGCN(nn.Module):
    """As examples/ogbn_proteins_deepergcn.py of PyG: residual layers that are normalised before."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, HIDDEN)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            conv = pyg.GENConv(HIDDEN, HIDDEN, aggr="softmax", learn_t=True, norm="layer")
            norm = pyg.LayerNorm(HIDDEN, affine=True, mode="node")
            layer = pyg.DeepGCNLayer(conv, norm, nn.ReLU(), block="res+", dropout=0.0)
            self.layers.append(layer)
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.layers[0].conv(self.encoder(x), edge_index)
        for layer in self.layers[1:]:
            x = layer(x, edge_index)
        out: Tensor = self.lin(self.layers[0].act(self.layers[0].norm(x)))
        return out


class Shuffled(nn.Module):
    """As `DeepGraphInfomax`: layers over the rows of a list of ids as features of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                pyg.GCNConv(WIDTH, HIDDEN),
                pyg.GATConv(HIDDEN, HIDDEN),
                pyg.SAGEConv(HIDDEN, HIDDEN, aggr="max"),
                pyg.GINConv(nn.Linear(HIDDEN, CLASSES)),
            ]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        nodes = x.shape[0]
        for step, conv in enumerate(self.convs):
            ids = (torch.arange(nodes) * 5 + step) % nodes
            if step == 2:
                ids = ids // 2  # some rows twice, others not at all
            x = conv(x[ids], edge_index)
        return x


class Reversible(nn.Module):
    """As examples/rev_gnn.py of PyG: layers that compute their inputs again, one with a mask."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.LayerNorm(HIDDEN // 2), pyg.SAGEConv(HIDDEN // 2, HIDDEN // 2)

        def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor | None = None) -> Tensor:
            x = self.norm(x).relu()
            out: Tensor = self.conv(x if mask is None else x * mask, edge_index)
            return out

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.layers = nn.ModuleList(pyg.GroupAddRev(self.Block(), num_groups=2) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.into(x)
        mask = torch.ones_like(x[:, : HIDDEN // 2]) * 0.5
        x = self.layers[1](self.layers[0](x, edge_index), edge_index, mask)
        out: Tensor = self.out(x)
        return out


class Hetero(nn.Module):
    """`HeteroConv` twice, with layers for one and for two types of nodes."""

    def __init__(self, aggr: str = "sum") -> None:
        super().__init__()
        self.lins = pyg.HeteroDictLinear({"paper": 4, "author": 3, "venue": 2}, HIDDEN)
        self.convs = nn.ModuleList()
        for _ in range(2):
            convs = {
                ("author", "writes", "paper"): pyg.GATConv(
                    (HIDDEN, HIDDEN), HIDDEN, add_self_loops=False
                ),
                ("paper", "written_by", "author"): pyg.SAGEConv((HIDDEN, HIDDEN), HIDDEN),
                ("paper", "cites", "paper"): pyg.GCNConv(HIDDEN, HIDDEN),
                ("paper", "appears_at", "venue"): pyg.GraphConv(
                    (HIDDEN, HIDDEN), HIDDEN, aggr="mean"
                ),
                ("venue", "prints", "paper"): pyg.GATv2Conv(
                    (HIDDEN, HIDDEN), HIDDEN, add_self_loops=False
                ),
            }
            self.convs.append(pyg.HeteroConv(convs, aggr=aggr))
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x_dict = self.lins(x_dict)
        for conv in self.convs:
            x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
        out: Tensor = self.lin(x_dict["paper"])
        return out


class Attention(nn.Module):
    """Attention over the relations of each type of nodes."""

    def __init__(self) -> None:
        super().__init__()
        widths = {"paper": 4, "author": 3, "venue": 2}
        self.conv = pyg.HANConv(widths, HIDDEN, small_hetero().metadata(), heads=2)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        out: Tensor = self.conv(x_dict, edge_index_dict)["paper"]
        return out


class HGT(nn.Module):
    """As examples/hetero/hgt_dblp.py of PyG: two layers of attention over all relations."""

    def __init__(self) -> None:
        super().__init__()
        data = small_hetero()
        widths = {"paper": 4, "author": 3, "venue": 2}
        self.first = pyg.HGTConv(widths, HIDDEN, data.metadata(), heads=2)
        self.second = pyg.HGTConv(HIDDEN, HIDDEN, data.metadata(), heads=4)
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x_dict = self.second(self.first(x_dict, edge_index_dict), edge_index_dict)
        out: Tensor = self.lin(x_dict["paper"])
        return out


class ToHetero(nn.Module):
    """`to_hetero` of a model of SAGE layers, which gets pairs of features."""

    def __init__(self, conv: str = "SAGEConv", aggr: str = "sum") -> None:
        super().__init__()

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                options = {"add_self_loops": False} if conv == "GATConv" else {}
                self.conv1 = getattr(pyg, conv)((-1, -1), HIDDEN, **options)
                self.norm = nn.BatchNorm1d(HIDDEN)
                self.conv2 = getattr(pyg, conv)((-1, -1), CLASSES, **options)

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                x = self.norm(self.conv1(x, edge_index)).relu()
                out: Tensor = self.conv2(x, edge_index)
                return out

        # Python 3.10 with torch 2.4 cannot trace annotations that are strings.
        Net.forward.__annotations__.clear()
        data = small_hetero()
        self.net = pyg.to_hetero(Net(), data.metadata(), aggr=aggr)
        with torch.no_grad():
            self.net(data.x_dict, data.edge_index_dict)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        out: Tensor = self.net(x_dict, edge_index_dict)["paper"]
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: pyg.GCN(WIDTH, HIDDEN, 2, CLASSES, norm="batch_norm"),
    "GCN jump cat": lambda: pyg.GCN(WIDTH, HIDDEN, 3, CLASSES, jk="cat", norm="graph_norm"),
    "GraphSAGE": lambda: pyg.GraphSAGE(WIDTH, HIDDEN, 3, CLASSES, norm="layer_norm"),
    "GraphSAGE jump max": lambda: pyg.GraphSAGE(WIDTH, HIDDEN, 2, CLASSES, jk="max"),
    "GraphSAGE jump lstm": lambda: pyg.GraphSAGE(WIDTH, HIDDEN, 2, CLASSES, jk="lstm"),
    "GAT": lambda: pyg.GAT(WIDTH, HIDDEN, 2, CLASSES, heads=2, act="elu"),
    "GAT v2": lambda: pyg.GAT(WIDTH, HIDDEN, 2, CLASSES, heads=2, v2=True, jk="last"),
    "GIN": lambda: pyg.GIN(WIDTH, HIDDEN, 2, CLASSES, norm="pair_norm"),
    "EdgeCNN": lambda: pyg.EdgeCNN(WIDTH, HIDDEN, 2, CLASSES),
    "PNA": lambda: pyg.PNA(
        WIDTH,
        HIDDEN,
        2,
        CLASSES,
        aggregators=["mean", "max"],
        scalers=["identity", "amplification"],
        deg=torch.tensor([3, 5, 4, 2, 2]),
    ),
    "DeepGCN": DeepGCN,
    "shuffled rows": Shuffled,
    "reversible": Reversible,
}

HETERO: dict[str, Callable[[], nn.Module]] = {
    "HeteroConv sum": Hetero,
    "HeteroConv max": lambda: Hetero("max"),
    "HeteroConv mean": lambda: Hetero("mean"),
    "HANConv": Attention,
    "HGTConv": HGT,
    "to_hetero SAGE": ToHetero,
    "to_hetero GAT mean": lambda: ToHetero("GATConv", "mean"),
    "to_hetero Graph": lambda: ToHetero("GraphConv"),
}


def _model(make: Callable[[], nn.Module]) -> Callable[[], None]:
    return lambda: check_model(make(), shared(small_graph))


def _hetero(make: Callable[[], nn.Module]) -> Callable[[], None]:
    inputs = ("paper/x", "author/x", "venue/x")
    return lambda: check_model(
        make(), shared(small_hetero), lambda m, d: m(d.x_dict, d.edge_index_dict), inputs=inputs
    )


CASES: dict[str, Callable[[], None]] = {
    **{name: _model(make) for name, make in MODELS.items()},
    **{name: _hetero(make) for name, make in HETERO.items()},
}
