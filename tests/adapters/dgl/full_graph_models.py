"""Models of DGL's users and their full-batch training, which runs on any graph."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

import peergraph_dgl  # so that DGL can be imported

# isort: split

import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN, CLASSES, TYPES = 6, 8, 4, 3


def plain(num_nodes: int = 50, num_edges: int = 220, loops: bool = False) -> Any:
    """Nodes without in-edges at both ends, parallel edges, self loops; labels that can be learnt.

    No node of the first half is a training node.
    """
    random = torch.Generator().manual_seed(num_nodes)
    src = torch.randint(num_nodes, (num_edges,), generator=random)
    dst = torch.randint(min(2, num_nodes - 1), num_nodes, (num_edges,), generator=random)
    dst.clamp_(max=max(num_nodes - 2, 0))
    if loops:
        every = torch.arange(num_nodes)
        src, dst = torch.cat([src, every]), torch.cat([dst, every])
    g = dgl.graph((src, dst), num_nodes=num_nodes)
    feat = torch.randn(num_nodes, WIDTH, generator=random, dtype=torch.float64)
    g.ndata["feat"] = feat
    g.ndata["label"] = feat[:, :CLASSES].argmax(1)
    g.ndata["train"] = torch.arange(num_nodes) >= num_nodes // 2
    g.edata["w"] = torch.rand(g.num_edges(), generator=random, dtype=torch.float64)
    g.edata["type"] = torch.randint(TYPES, (g.num_edges(),), generator=random)
    return g


def typed() -> Any:
    """Three node types and four relations."""
    random = torch.Generator().manual_seed(5)
    counts = {"user": 23, "item": 31, "tag": 2}

    def edges(source: str, target: str, count: int) -> tuple[Tensor, Tensor]:
        src = torch.randint(counts[source], (count,), generator=random)
        return src, torch.randint(counts[target], (count,), generator=random)

    g = dgl.heterograph(
        {
            ("user", "buys", "item"): edges("user", "item", 80),
            ("item", "bought", "user"): edges("item", "user", 70),
            ("user", "knows", "user"): edges("user", "user", 60),
            ("tag", "on", "item"): edges("tag", "item", 40),
        },
        num_nodes_dict=counts,
    )
    for ntype, count in counts.items():
        g.nodes[ntype].data["feat"] = torch.randn(
            count, WIDTH, generator=random, dtype=torch.float64
        )
    g.nodes["item"].data["label"] = torch.randint(CLASSES, (31,), generator=random)
    g.nodes["item"].data["train"] = torch.arange(31) % 3 > 0
    return g


class Layers(nn.Module):
    """Convolutions with ReLU between them."""

    def __init__(self, first: nn.Module, second: nn.Module, edges: str | None = None) -> None:
        super().__init__()
        self.first, self.second, self.edges = first, second, edges

    def forward(self, g: Any, x: Tensor) -> Tensor:
        more = [] if self.edges is None else [g.edata[self.edges]]
        h = self.first(g, x, *more).flatten(1).relu()
        out: Tensor = self.second(g, h, *more)
        return out.mean(1) if out.dim() == 3 else out


class WeightedGCN(nn.Module):
    """GraphConv with edge weights, and an average with the features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dglnn.GraphConv(WIDTH, HIDDEN, norm="right", allow_zero_in_degree=True)
        self.second = dglnn.GraphConv(HIDDEN, CLASSES, norm="left", allow_zero_in_degree=True)
        self.skip = nn.Linear(WIDTH, CLASSES)

    def forward(self, g: Any, x: Tensor) -> Tensor:
        h = self.first(g, x, edge_weight=g.edata["w"]).relu()
        out: Tensor = self.second(g, h, edge_weight=g.edata["w"]) + self.skip(x)
        return out


class Deep(nn.Module):
    """Five residual layers with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.convs = nn.ModuleList(dglnn.SAGEConv(HIDDEN, HIDDEN, "mean") for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN) for _ in range(5))
        self.out = nn.Linear(HIDDEN * 6, CLASSES)

    def forward(self, g: Any, x: Tensor) -> Tensor:
        every = [self.into(x)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            every.append(every[-1] + conv(g, norm(every[-1]).relu()))
        out: Tensor = self.out(torch.cat(every, 1))
        return out


class BuiltIn(nn.Module):
    """A user's own message passing with DGL's built-in functions: dot-product attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.out = nn.Linear(WIDTH + HIDDEN, CLASSES)

    def forward(self, g: Any, x: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["q"], g.ndata["k"] = self.query(x), self.key(x)
            g.apply_edges(fn.u_dot_v("k", "q", "score"))
            g.edata["a"] = dgl.ops.edge_softmax(g, g.edata["score"]) * g.edata["w"].unsqueeze(1)
            g.update_all(fn.u_mul_e("k", "a", "m"), fn.sum("m", "h"))
            g.ndata["x"] = x
            g.update_all(fn.copy_u("x", "m"), fn.max("m", "top"))
            out: Tensor = self.out(torch.cat([g.ndata["h"], g.ndata["top"]], 1))
            return out


class UserFunctions(nn.Module):
    """Message and reduce functions of the user's, with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.reduce = nn.Linear(2 * WIDTH + 1, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(2 * HIDDEN + WIDTH, CLASSES)

    def send(self, edges: Any) -> dict[str, Tensor]:
        ends = [edges.src["x"], edges.dst["x"], edges.data["w"].unsqueeze(1)]
        return {"m": self.message(torch.cat(ends, 1)).tanh()}

    def collect(self, nodes: Any) -> dict[str, Tensor]:
        mail = nodes.mailbox["m"]
        return {"h": self.reduce(mail).logsumexp(1), "n": nodes.data["x"] * mail.shape[1]}

    def forward(self, g: Any, x: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["x"] = x
            g.update_all(self.send, fn.mean("m", "mean"))
            g.update_all(self.send, self.collect, lambda nodes: {"h": nodes.data["h"].relu()})
            out: Tensor = self.out(torch.cat([g.ndata["mean"], g.ndata["h"], g.ndata["x"]], 1))
            return out


class Hetero(nn.Module):
    """R-GCN over typed relations: a layer for each relation, summed."""

    def __init__(self, aggregate: str = "sum") -> None:
        super().__init__()
        kinds = ("buys", "bought", "knows", "on")
        self.first = dglnn.HeteroGraphConv(
            {kind: dglnn.GraphConv(WIDTH, HIDDEN, norm="right") for kind in kinds}, aggregate
        )
        self.second = dglnn.HeteroGraphConv(
            {kind: dglnn.SAGEConv(HIDDEN, CLASSES, "mean") for kind in kinds}, aggregate
        )

    def forward(self, g: Any, x: dict[str, Tensor]) -> Tensor:
        h = {ntype: rows.relu() for ntype, rows in self.first(g, x).items()}
        h["tag"] = x["tag"].new_zeros(2, HIDDEN) if "tag" not in h else h["tag"]
        out: Tensor = self.second(g, h)["item"]
        return out


class ByRelation(nn.Module):
    """``multi_update_all`` and ``update_all`` of one relation."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ("buys", "bought", "knows", "on")
        self.weights = nn.ModuleDict({kind: nn.Linear(WIDTH, WIDTH) for kind in kinds})
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, g: Any, x: dict[str, Tensor]) -> Tensor:
        with g.local_scope():
            functions = {}
            for source, kind, _ in g.canonical_etypes:
                g.nodes[source].data[f"h {kind}"] = self.weights[kind](x[source])
                functions[kind] = (fn.copy_u(f"h {kind}", "m"), fn.mean("m", "h"))
            g.multi_update_all(functions, "sum")
            g.nodes["user"].data["h"] = g.nodes["user"].data["h"].relu()
            g.update_all(fn.copy_u("h", "m"), fn.sum("m", "z"), etype="buys")
            rows = g.nodes["item"].data
            out: Tensor = self.out(rows["z"] + rows["h"])
            return out


Make = Callable[[], nn.Module]

MODELS: dict[str, tuple[Make, str]] = {
    "GCN": (
        lambda: Layers(dglnn.GraphConv(WIDTH, HIDDEN), dglnn.GraphConv(HIDDEN, CLASSES)),
        "loops",
    ),
    "GCN weighted": (WeightedGCN, "plain"),
    "SAGE mean": (
        lambda: Layers(
            dglnn.SAGEConv(WIDTH, HIDDEN, "mean"), dglnn.SAGEConv(HIDDEN, CLASSES, "gcn")
        ),
        "plain",
    ),
    "SAGE pool": (
        lambda: Layers(
            dglnn.SAGEConv(WIDTH, HIDDEN, "pool"), dglnn.SAGEConv(HIDDEN, CLASSES, "pool")
        ),
        "plain",
    ),
    "GAT": (
        lambda: Layers(
            dglnn.GATConv(WIDTH, 5, 3, residual=True, activation=F.elu),
            dglnn.GATConv(15, CLASSES, 2),
        ),
        "loops",
    ),
    "GATv2": (
        lambda: Layers(
            dglnn.GATv2Conv(WIDTH, 5, 3, residual=True, allow_zero_in_degree=True),
            dglnn.GATv2Conv(15, CLASSES, 2, allow_zero_in_degree=True, share_weights=True),
        ),
        "plain",
    ),
    "GIN": (
        lambda: Layers(
            dglnn.GINConv(
                nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN)), learn_eps=True
            ),
            dglnn.GINConv(nn.Linear(HIDDEN, CLASSES), "max"),
        ),
        "plain",
    ),
    "R-GCN": (
        lambda: Layers(
            dglnn.RelGraphConv(WIDTH, HIDDEN, TYPES, "basis", 2, layer_norm=True),
            dglnn.RelGraphConv(HIDDEN, CLASSES, TYPES, "bdd", 2),
            "type",
        ),
        "plain",
    ),
    "deep, BatchNorm": (Deep, "plain"),
    "built-in functions": (BuiltIn, "plain"),
    "functions of the user": (UserFunctions, "plain"),
    "hetero": (Hetero, "typed"),
    "hetero, max": (lambda: Hetero("max"), "typed"),
    "by relation": (ByRelation, "typed"),
}

GRAPHS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "loops": lambda: plain(loops=True),
    "typed": typed,
    "one node": lambda: plain(1, 2),
    "two nodes": lambda: plain(2, 3),
}


def train(make: Make, g: Any, epochs: int, fast: bool = False) -> list[float]:
    """The losses of each epoch, then accuracy and the sum of what the trained model returns.

    These are the lines of a script for one process; `g` is any graph.
    """
    torch.manual_seed(0)
    model = make().double()
    if fast:
        peergraph_dgl.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    is_typed = len(g.ntypes) > 1
    data = g.nodes["item"].data if is_typed else g.ndata
    x = {t: g.nodes[t].data["feat"] for t in g.ntypes} if is_typed else data["feat"]
    label, mask = data["label"], data["train"]
    values = []
    for _ in range(epochs):
        model.train()
        out = model(g, x)
        loss = F.cross_entropy(out[mask], label[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    model.eval()
    with torch.no_grad():
        out = model(g, x)
        right = (out.argmax(1) == label)[~mask].sum().item()
        return [*values, float(right), out.abs().sum().item()]
