"""The models and optimizers of programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.fullgraph.fuzz.graphs import CLASSES, RELATIONS

Make = Callable[[int, int], nn.Module]

CONVS: dict[str, Make] = {
    "GCN": lambda a, b: gnn.GCNConv(a, b),
    "SAGE": lambda a, b: gnn.SAGEConv(a, b),
    "SAGEmax": lambda a, b: gnn.SAGEConv(a, b, aggr="max"),
    "GAT": lambda a, b: gnn.GATConv(a, b, heads=2, concat=False),
    "GATv2": lambda a, b: gnn.GATv2Conv(a, b),
    "GIN": lambda a, b: gnn.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))),
    "Graph": lambda a, b: gnn.GraphConv(a, b),
    "Edge": lambda a, b: gnn.EdgeConv(nn.Linear(2 * a, b)),
    "SG": lambda a, b: gnn.SGConv(a, b, K=2),
    "TAG": lambda a, b: gnn.TAGConv(a, b, K=2),
    "Transformer": lambda a, b: gnn.TransformerConv(a, b),
    "LG": lambda a, b: gnn.LGConv(),
}
TYPED: dict[str, Make] = {
    "TypedSAGE": lambda a, b: gnn.SAGEConv((a, a), b),
    "TypedGAT": lambda a, b: gnn.GATConv((a, a), b, heads=2, concat=False, add_self_loops=False),
    "TypedGraph": lambda a, b: gnn.GraphConv((a, a), b),
}
DGL: dict[str, Callable[[Any, int, int], nn.Module]] = {
    "DglGraph": lambda nn_, a, b: nn_.GraphConv(a, b, allow_zero_in_degree=True),
    "DglSAGE": lambda nn_, a, b: nn_.SAGEConv(a, b, "mean"),
    "DglSAGEpool": lambda nn_, a, b: nn_.SAGEConv(a, b, "pool"),
    "DglGAT": lambda nn_, a, b: nn_.GATConv(a, b, 2, allow_zero_in_degree=True),
    "DglGATv2": lambda nn_, a, b: nn_.GATv2Conv(a, b, 1, allow_zero_in_degree=True),
    "DglGIN": lambda nn_, a, b: nn_.GINConv(nn.Linear(a, b), "sum"),
    "DglTAG": lambda nn_, a, b: nn_.TAGConv(a, b, 2),
    "DglSG": lambda nn_, a, b: nn_.SGConv(a, b, 2, allow_zero_in_degree=True),
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "graph": gnn.GraphNorm,
    "instance": gnn.InstanceNorm,
    "pair": lambda columns: gnn.PairNorm(),
}


class DglLayer(nn.Module):
    """A layer of DGL that takes the graph last, and means over heads."""

    def __init__(self, kind: str, a: int, b: int) -> None:
        super().__init__()
        import dgl.nn

        self.conv = DGL[kind](dgl.nn, a, b)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        out: Tensor = self.conv(g, x)
        return out.mean(1) if out.dim() == 3 else out

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        if hasattr(self.conv, "reset_parameters"):
            self.conv.reset_parameters()
        else:
            self.conv.apply_func.reset_parameters()  # of GIN


class RelationLayers(nn.Module):
    """A layer of each relation, whose results are added."""

    def __init__(self, kind: str, a: int, b: int) -> None:
        super().__init__()
        self.convs = gnn.HeteroConv({relation: TYPED[kind](a, b) for relation in RELATIONS})

    def forward(self, x: tuple[Tensor, Tensor], edges: Any) -> tuple[Tensor, Tensor]:
        out = self.convs(dict(zip("ab", x, strict=True)), edges)
        return out["a"], out["b"]

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        self.convs.reset_parameters()


def _layer(conv: str, a: int, b: int) -> nn.Module:
    if conv in TYPED:
        return RelationLayers(conv, a, b)
    return DglLayer(conv, a, b) if conv in DGL else CONVS.get(conv, nn.Linear)(a, b)


class Net(nn.Module):
    """Two layers named like ``GCN``, ``GAT+batch+dropout`` or ``MLP+layer``."""

    def __init__(self, kind: str, columns: int) -> None:
        super().__init__()
        conv, *parts = kind.split("+")
        hidden = columns if conv == "LG" else 4
        self.first, self.second = _layer(conv, columns, hidden), _layer(conv, hidden, CLASSES)
        self.head = nn.Linear(hidden, CLASSES) if conv == "LG" else nn.Identity()
        self.norm = next((NORMS[part](hidden) for part in parts if part in NORMS), nn.Identity())
        self.dropout = 0.4 if "dropout" in parts else 0.0
        self.residual = "residual" in parts and conv != "LG"

    def forward(self, x: Tensor, *edges: Any) -> Tensor:
        """Takes features, edges, perhaps weights; features of both types and edges by type."""
        if isinstance(self.first, RelationLayers):
            z, edge_dict = edges
            h, of_others = self.first((x, z), edge_dict)
            h = self.activate(h)
            out: Tensor = self.second((h, F.elu(of_others)), edge_dict)[0]
        else:
            edges = () if isinstance(self.first, nn.Linear) else edges
            h = self.activate(self.first(x, *edges))
            out = self.head(self.second(h, *edges))
        return out + h[:, :CLASSES] if self.residual else out

    def activate(self, h: Tensor) -> Tensor:
        """Norm, ELU and dropout."""
        h = F.elu(self.norm(h))
        return F.dropout(h, self.dropout, self.training) if self.dropout else h

    def reset_parameters(self) -> None:
        """Draws the parameters anew, as the parts do."""
        for part in self.children():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()


class OptimizerPair:
    """Two optimizers that step together."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        """As an optimizer."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """As an optimizer."""
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of both optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        """Those of both optimizers."""
        return {p: s for optimizer in self.optimizers for p, s in optimizer.state.items()}
