"""Random layers and models of PyG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.utils import trim_to_layer

from .graphs import CHANNELS, EDGE_WIDTH, RELATIONS, WIDTH, Draw, one_of
from .inputs import ONE, Inputs


def layer_of(draw: Draw, data: Any) -> tuple[str, nn.Module]:
    """Returns a layer that takes the graph, and how it is called: see :func:`call`."""
    return _layer(draw) if isinstance(data, Data) else _typed_layer(draw, data)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, CHANNELS), nn.ReLU())


def _layer(draw: Draw) -> tuple[str, nn.Module]:
    def flag(chance: float = 0.5) -> bool:
        return bool(draw.random() < chance)

    kind = one_of(
        draw, "SAGE", "GCN", "GIN", "GINE", "Graph", "Gated", "GAT", "GATv2", "RGCN", "model"
    )
    sums = one_of(draw, "add", "mean", "max", "min")
    weighted = one_of(draw, "", "edge_weight")
    heads: dict[str, Any] = {
        "heads": one_of(draw, 1, 2, 3),
        "concat": flag(),
        "add_self_loops": flag(),
        "edge_dim": one_of(draw, None, EDGE_WIDTH),
        "bias": flag(),
        "residual": flag(0.3),
    }
    of_edges = "edge_attr" if heads["edge_dim"] else ""
    if kind == "SAGE":
        more = ["median", "var", ["mean", "max"], gnn.SoftmaxAggregation(learn=True)]
        options = {"normalize": flag(), "root_weight": flag(), "project": flag(0.2)}
        return "", gnn.SAGEConv(WIDTH, CHANNELS, one_of(draw, sums, *more), **options)
    if kind == "GCN":
        normalize = flag(0.7)
        options = {"improved": flag(0.3), "cached": flag(0.2), "normalize": normalize}
        loops = flag() and normalize
        layer = gnn.GCNConv(WIDTH, CHANNELS, add_self_loops=loops, aggr=sums, **options)
        return weighted, layer
    if kind == "GIN":
        return "", gnn.GINConv(_mlp(), eps=0.5, train_eps=flag(), aggr=sums)
    if kind == "GINE":
        return "edge_attr", gnn.GINEConv(_mlp(), train_eps=flag(), edge_dim=EDGE_WIDTH, aggr=sums)
    if kind == "Graph":
        return weighted, gnn.GraphConv(WIDTH, CHANNELS, aggr=sums, bias=flag())
    if kind == "Gated":
        return weighted, gnn.GatedGraphConv(WIDTH + 1, one_of(draw, 1, 2), aggr=sums)
    if kind == "GAT":
        heads |= {"fill_value": one_of(draw, "mean", 1.0), "negative_slope": one_of(draw, 0.2, -1)}
        return of_edges, gnn.GATConv(WIDTH, CHANNELS, **heads)
    if kind == "GATv2":
        return of_edges, gnn.GATv2Conv(WIDTH, CHANNELS, share_weights=flag(), **heads)
    if kind == "RGCN":
        cls = one_of(draw, gnn.RGCNConv, gnn.FastRGCNConv)
        options = {"num_bases": one_of(draw, None, 2), "root_weight": flag(), "bias": flag()}
        return "edge_type", cls(
            WIDTH, CHANNELS, RELATIONS, aggr=one_of(draw, "mean", "add"), **options
        )
    options = {
        "act": one_of(draw, "relu", "relu", None, "elu"),
        "act_first": flag(0.3),
        "norm": one_of(draw, None, None, "layer_norm"),
        "jk": one_of(draw, None, None, "last", "cat", "max"),
        "out_channels": one_of(draw, CHANNELS, None),
    }
    cls = one_of(draw, gnn.GraphSAGE, gnn.GCN, gnn.GIN, gnn.GAT)
    return one_of(draw, "", "hops"), cls(WIDTH, CHANNELS, 2, **options)


class _Trimmed(nn.Module):
    """Layers on a sample: each gets only the edges of the hops that the seeds still need."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any, edges: Any, nodes: Any = None, num_edges: Any = None) -> Any:
        for i, layer in enumerate(self.layers):
            if nodes is not None:
                x, edges, _ = trim_to_layer(i, nodes, num_edges, x, edges)
            x = {key: rows.relu() for key, rows in layer(x, edges).items()}
        return x


class _Two(nn.Module):
    """A model for ``to_hetero``."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def _typed_layer(draw: Draw, data: Any) -> tuple[str, nn.Module]:
    widths = {t: data[t].x.shape[1] for t in data.node_types}
    metadata = data.metadata()
    kinds = one_of(draw, ["SAGE"], ["SAGE", "Graph"], ["GAT"], ["GAT", "SAGE", "GATv2", "Graph"])

    def relations(ends: dict[str, int], kinds: list[str], aggr: Any) -> nn.Module:
        return gnn.HeteroConv({t: _relation(draw, t, ends, kinds) for t in data.edge_types}, aggr)

    kind = one_of(draw, "conv", "conv", "weights", "HGT", "HAN", "to_hetero", "hops")
    all_change = {t[2] for t in data.edge_types} == {*widths}  # what to_hetero needs
    if kind == "conv" or (kind == "to_hetero" and not all_change):
        aggr = one_of(draw, "sum", "sum", "mean", "max", "cat", None)
        return "", relations(widths, kinds, aggr)
    if kind == "weights":
        return "edge_weight_dict", relations(widths, ["Graph"], one_of(draw, "sum", "mean"))
    if kind == "HGT":
        return "", gnn.HGTConv(widths, one_of(draw, 4, 6), metadata, heads=one_of(draw, 1, 2))
    if kind == "HAN":
        return "", gnn.HANConv(widths, 4, metadata, heads=one_of(draw, 1, 2))
    if kind == "hops":
        inner = dict.fromkeys(widths, CHANNELS)
        layers = [relations(ends, kinds, one_of(draw, "sum", "mean")) for ends in (widths, inner)]
        return "hops", _Trimmed(layers)
    options = one_of(draw, (gnn.SAGEConv, {}), (gnn.GATConv, {"add_self_loops": False}))
    cls, arguments = options
    model = _Two(*(cls((-1, -1), CHANNELS, **arguments) for _ in range(2))).double()
    model = gnn.to_hetero(model, metadata, aggr=one_of(draw, "sum", "mean", "max"))
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)  # makes the lazy parameters
    return "", model


def _relation(draw: Draw, edge_type: Any, widths: dict[str, int], kinds: list[str]) -> nn.Module:
    ends: Any = widths[edge_type[0]], widths[edge_type[2]]
    kind, bias = one_of(draw, *kinds), bool(draw.random() < 0.8)
    if kind == "SAGE":
        root = bool(draw.random() < 0.8)
        aggr = one_of(draw, "mean", "mean", "sum", "max")
        return gnn.SAGEConv(ends, CHANNELS, aggr, root_weight=root, bias=bias)
    if kind == "Graph":
        return gnn.GraphConv(ends, CHANNELS, aggr=one_of(draw, "add", "mean"), bias=bias)
    if kind == "GAT":
        loops = edge_type[0] == edge_type[2] and bool(draw.random() < 0.5)
        return gnn.GATConv(ends, CHANNELS // 2, heads=2, add_self_loops=loops, bias=bias)
    return gnn.GATv2Conv(ends, CHANNELS, add_self_loops=False)


def call(inputs: Inputs, how: str) -> dict[str, Any]:
    """Returns what a layer returns, by type, and the gradients of parameters and inputs.

    Args:
        inputs: of the layer.
        how: the argument with values of edges that it takes, "hops" for numbers of sampled nodes
            and edges, or "".
    """
    layer, one = inputs.layer, ONE in inputs.x
    layer.zero_grad()
    x: Any = inputs.x[ONE] if one else dict(inputs.x)
    edges: Any = next(iter(inputs.edges.values())) if one else dict(inputs.edges)
    leaves = {f"x {k}": t for k, t in inputs.x.items()}
    arguments: dict[str, Any] = {}
    if how == "hops":
        names = ("num_sampled_nodes_per_hop", "num_sampled_edges_per_hop")
        names = names if one else ("nodes", "num_edges")
        arguments = {} if inputs.hops is None else dict(zip(names, inputs.hops, strict=True))
    elif how:
        values = inputs.of_edges[how.removesuffix("_dict")]
        leaves |= {f"{how} {k}": t for k, t in values.items()}
        arguments[how] = next(iter(values.values())) if one else dict(values)
    for leaf in leaves.values():
        leaf.grad = None
    modes = {"grad": torch.enable_grad, "no_grad": torch.no_grad}
    with modes.get(inputs.mode, torch.inference_mode)():
        out = layer(x, edges, **arguments)
    outputs = {ONE: out} if isinstance(out, Tensor) else dict(out)
    results: dict[str, Any] = {f"result {k}": t for k, t in outputs.items()}
    parts = [t for t in outputs.values() if isinstance(t, Tensor) and t.requires_grad]
    if parts:
        # Each column has its own weight, so that swapped columns would be seen.
        losses = [(t * torch.linspace(0.5, 1.5, t.shape[-1], device=t.device)).sum() for t in parts]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        leaves |= dict(layer.named_parameters())
        results |= {f"gradient of {k}": t.grad for k, t in leaves.items() if t.requires_grad}
    return {
        k: t.detach().clone() if isinstance(t, Tensor) else t
        for k, t in results.items()
        if t is not None
    }
