"""Layers and message passing of DGL, to be compared on a graph and on its partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, cycle
from typing import Any

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import TYPES, WIDTH  # isort: split

import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], nn.Module]
Operation = Callable[..., Any]
"""Called with a graph, features of nodes, and weights, features and types of edges."""

_LOOSE = {"allow_zero_in_degree": True}


def _on(arguments: str) -> Operation:
    """How a layer is called: with the graph, and then with what `arguments` names."""

    def call(layer: Any, g: Any, x: Tensor, w: Tensor, f: Tensor, t: Tensor) -> Any:
        named = {"x": x, "w": w, "f": f, "t": t, "two": x[:, :2], "pair": (x, x)}
        result: Any = layer(g, *(named[name] for name in arguments.split()))
        return result

    return call


def _keyword(**keywords: Any) -> Operation:
    def call(layer: Any, g: Any, x: Tensor, w: Tensor, f: Tensor, t: Tensor) -> Any:
        named = {"w": w, "f": f}
        arguments = {key: named.get(value, value) for key, value in keywords.items()}
        return layer(g, x, **arguments)

    return call


def _network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5), nn.Tanh())


LAYERS: dict[str, tuple[Make, Operation]] = {
    "GraphConv": (lambda: dglnn.GraphConv(WIDTH, 5, **_LOOSE), _on("x")),
    "GraphConv left": (lambda: dglnn.GraphConv(WIDTH, 9, norm="left", **_LOOSE), _on("x")),
    "GraphConv none": (
        lambda: dglnn.GraphConv(WIDTH, WIDTH, "none", weight=False, bias=False, **_LOOSE),
        _on("x"),
    ),
    "GraphConv weighted": (
        lambda: dglnn.GraphConv(WIDTH, 5, **_LOOSE),
        _keyword(edge_weight="w"),
    ),
    "GraphConv pair": (lambda: dglnn.GraphConv(WIDTH, 5, **_LOOSE), _on("pair")),
    "Set2Set": (lambda: dglnn.Set2Set(WIDTH, 2, 1), _on("x")),
    "SAGE mean": (lambda: dglnn.SAGEConv(WIDTH, 5, "mean"), _on("x")),
    "SAGE mean, wide": (lambda: dglnn.SAGEConv(WIDTH, 9, "mean"), _on("x w")),
    "SAGE gcn": (lambda: dglnn.SAGEConv(WIDTH, 5, "gcn"), _on("x")),
    "SAGE pool": (lambda: dglnn.SAGEConv(WIDTH, 5, "pool"), _on("x")),
    "SAGE pool, weighted": (lambda: dglnn.SAGEConv(WIDTH, 5, "pool"), _on("x w")),
    "SAGE lstm": (lambda: dglnn.SAGEConv(WIDTH, 5, "lstm"), _on("x")),
    "GAT": (lambda: dglnn.GATConv(WIDTH, 5, 3, residual=True, **_LOOSE), _on("x")),
    "GAT, weights returned": (
        lambda: dglnn.GATConv(WIDTH, 5, 3, **_LOOSE),
        _keyword(get_attention=True),
    ),
    "GAT weighted": (lambda: dglnn.GATConv(WIDTH, 5, 3, **_LOOSE), _on("x w")),
    "GAT pair": (lambda: dglnn.GATConv((WIDTH, WIDTH), 5, 2, **_LOOSE), _on("pair")),
    "GATv2": (lambda: dglnn.GATv2Conv(WIDTH, 5, 3, residual=True, **_LOOSE), _on("x")),
    "GATv2, weights returned": (
        lambda: dglnn.GATv2Conv(WIDTH, 5, 3, share_weights=True, **_LOOSE),
        _keyword(get_attention=True),
    ),
    "GIN sum": (lambda: dglnn.GINConv(_network(WIDTH), "sum", learn_eps=True), _on("x")),
    "GIN max": (lambda: dglnn.GINConv(_network(WIDTH), "max"), _on("x")),
    "GIN mean, weighted": (lambda: dglnn.GINConv(_network(WIDTH), "mean"), _on("x w")),
    "R-GCN basis": (lambda: dglnn.RelGraphConv(WIDTH, 5, TYPES, "basis", 2), _on("x t")),
    "R-GCN basis, weighted": (
        lambda: dglnn.RelGraphConv(WIDTH, 5, TYPES, "basis", 2, layer_norm=True),
        lambda layer, g, x, w, f, t: layer(g, x, t, norm=w.unsqueeze(1)),
    ),
    "R-GCN bdd": (lambda: dglnn.RelGraphConv(WIDTH, 6, TYPES, "bdd", 3), _on("x t")),
    "R-GCN": (lambda: dglnn.RelGraphConv(WIDTH, 5, TYPES), _on("x t")),
    "GINE": (lambda: dglnn.GINEConv(nn.Linear(WIDTH, 5)), _on("x f")),
    "Edge": (lambda: dglnn.EdgeConv(WIDTH, 5, **_LOOSE), _on("x")),
    "DotGat": (lambda: dglnn.DotGatConv(WIDTH, 5, 3, **_LOOSE), _on("x")),
    "NN": (lambda: dglnn.NNConv(WIDTH, 5, nn.Linear(WIDTH, 30), "mean"), _on("x f")),
    "TAG": (lambda: dglnn.TAGConv(WIDTH, 5, k=2), _on("x")),
    "SG": (lambda: dglnn.SGConv(WIDTH, 5, k=2, **_LOOSE), _on("x")),
    "APPNP": (lambda: dglnn.APPNPConv(k=3, alpha=0.2), _keyword(edge_weight="w")),
    "Gated": (lambda: dglnn.GatedGraphConv(WIDTH, 7, 2, 1), _on("x")),
    "Gated with types": (lambda: dglnn.GatedGraphConv(WIDTH, 7, 2, TYPES), _on("x t")),
    "GraphConv none, wide": (lambda: dglnn.GraphConv(WIDTH, 3, "none", **_LOOSE), _on("x")),
    "GraphConv right": (
        lambda: dglnn.GraphConv(WIDTH, 3, "right", **_LOOSE),
        _keyword(edge_weight="w"),
    ),
    # More than eight columns: DGL sorts the edges by their types.
    "Rel wide": (lambda: dglnn.RelGraphConv(WIDTH, 12, TYPES), _on("x t")),
    "Rel bases, wide": (lambda: dglnn.RelGraphConv(WIDTH, 12, TYPES, "basis", 2), _on("x t")),
    "HGT wide": (
        lambda: dglnn.HGTConv(WIDTH, 12, 2, 2, TYPES),
        lambda layer, g, x, w, f, t: layer(g, x, (x[:, 0] > 0).long().detach(), t),
    ),
    "PNA": (
        lambda: dglnn.PNAConv(WIDTH, 5, ["mean", "max"], ["amplification"], 2.0),
        _on("x"),
    ),
    "Cheb": (
        lambda: dglnn.ChebConv(WIDTH, 5, 2),
        lambda layer, g, x, w, f, t: layer(g, x, [2.0]),
    ),
    "AGNN": (lambda: dglnn.AGNNConv(**_LOOSE), _on("x")),
    "CF": (lambda: dglnn.CFConv(WIDTH, WIDTH, 5, 4), _on("x f")),
    "GMM": (lambda: dglnn.GMMConv(WIDTH, 5, WIDTH, 2, **_LOOSE), _on("x f")),
    "EGAT": (lambda: dglnn.EGATConv(WIDTH, WIDTH, 5, 4, 2), _on("x f")),
    "EGNN": (lambda: dglnn.EGNNConv(WIDTH, 5, 4, WIDTH), _on("x two f")),
    "EdgeGAT": (lambda: dglnn.EdgeGATConv(WIDTH, WIDTH, 5, 2, **_LOOSE), _on("x f")),
    "GCN2": (lambda: dglnn.GCN2Conv(WIDTH, 1, **_LOOSE), _on("x x")),
    "GatedGCN": (lambda: dglnn.GatedGCNConv(WIDTH, WIDTH, 5), _on("x f")),
    "HGT": (
        lambda: dglnn.HGTConv(WIDTH, 3, 2, 2, TYPES),
        lambda layer, g, x, w, f, t: layer(g, x, (x[:, 0] > 0).long().detach(), t),
    ),
    "edge weights by degree": (
        lambda: dglnn.EdgeWeightNorm("both"),
        lambda layer, g, x, w, f, t: layer(g, w.abs() + 1),
    ),
}

ON_LOOPS = {"EGAT"}
"""Layers that need an in-edge at each node."""


def _update(message: Any, reduce: Any, g: Any, x: Tensor, w: Tensor, f: Tensor, t: Tensor) -> Any:
    with g.local_scope():
        g.ndata["x"], g.edata["w"], g.edata["f"] = x, w.unsqueeze(1), f.abs() + 1
        g.update_all(message, reduce)
        return g.ndata["out"]


def _at_edges(function: Any, g: Any, x: Tensor, w: Tensor, f: Tensor, t: Tensor) -> Any:
    with g.local_scope():
        g.ndata["x"], g.edata["w"], g.edata["f"] = x, w.unsqueeze(1), f.abs() + 1
        g.apply_edges(function)
        return g.edata["out"]


_MESSAGES = {
    "copy_u": fn.copy_u("x", "m"),
    "copy_e": fn.copy_e("f", "m"),
    "u_add_v": fn.u_add_v("x", "x", "m"),
    "u_sub_e": fn.u_sub_e("x", "f", "m"),
    "u_mul_e": fn.u_mul_e("x", "w", "m"),
    "u_div_e": fn.u_div_e("x", "f", "m"),
    "e_mul_v": fn.e_mul_v("f", "x", "m"),
    "v_dot_u": fn.v_dot_u("x", "x", "m"),
}
_REDUCES = {
    "sum": fn.sum("m", "out"),
    "mean": fn.mean("m", "out"),
    "max": fn.max("m", "out"),
    "min": fn.min("m", "out"),
}


def _by_degree(nodes: Any) -> dict[str, Tensor]:
    mail = nodes.mailbox["m"]
    ids = nodes.nodes().unsqueeze(1) % 7
    return {"out": mail.softmax(1).sum(1) * nodes.data["x"] * ids + mail.shape[1]}


def _ends(edges: Any) -> dict[str, Tensor]:
    src, dst, _ = edges.edges()
    odd = ((src + 2 * dst) % 3 == 0).unsqueeze(1)
    return {"out": torch.where(odd, edges.src["x"], edges.dst["x"] * edges.data["w"])}


OPERATIONS: dict[str, Operation] = {
    **{
        f"update_all {message}, {reduce}": partial(_update, _MESSAGES[message], _REDUCES[reduce])
        for message, reduces in zip(_MESSAGES, cycle(combinations(_REDUCES, 2)))
        for reduce in reduces
    },
    "apply_edges u_dot_v": partial(_at_edges, fn.u_dot_v("x", "x", "out")),
    "apply_edges u_sub_v": partial(_at_edges, fn.u_sub_v("x", "x", "out")),
    "apply_edges e_mul_v": partial(_at_edges, fn.e_mul_v("w", "x", "out")),
    "apply_edges copy_u": partial(_at_edges, fn.copy_u("x", "out")),
    "apply_edges of the user": partial(_at_edges, _ends),
    "reduce of the user": partial(_update, _MESSAGES["u_mul_e"], _by_degree),
    "reversed, sum": lambda g, x, w, f, t: _reversed(g, x, f, fn.u_mul_e, fn.sum),
    "reversed, mean": lambda g, x, w, f, t: _reversed(g, x, f, fn.u_mul_e, fn.mean),
    "reversed, max": lambda g, x, w, f, t: _reversed(g, x, f, fn.u_mul_e, fn.max),
    "reversed, min": lambda g, x, w, f, t: _reversed(g, x, f, fn.u_sub_e, fn.min),
    "reversed, of the user": lambda g, x, w, f, t: _reversed(g, x, f, fn.u_mul_e, _by_highest),
    "edge_softmax by source": lambda g, x, w, f, t: dgl.ops.edge_softmax(g, f, norm_by="src"),
    "edge_softmax of scores by source": lambda g, x, w, f, t: dgl.ops.edge_softmax(
        g, dgl.ops.u_mul_v(g, x, x)[:, :3], norm_by="src"
    ),
    "edge_softmax reversed": lambda g, x, w, f, t: dgl.ops.edge_softmax(dgl.reverse(g), f),
    "some edges": lambda g, x, w, f, t: _some_edges(g, x, f),
    "rows of a permutation": lambda g, x, w, f, t: _permuted(g, x, f),
    "links": lambda g, x, w, f, t: _links(g, x),
    "edge_softmax": lambda g, x, w, f, t: dgl.ops.edge_softmax(g, f),
    "gspmm": lambda g, x, w, f, t: dgl.ops.gspmm(g, "mul", "sum", x, f),
    "gsddmm": lambda g, x, w, f, t: dgl.ops.gsddmm(g, "add", x, f, "v", "e"),
    "degrees": lambda g, x, w, f, t: x * g.in_degrees().unsqueeze(1) + g.out_degrees()[:, None],
    "ids": lambda g, x, w, f, t: x * g.nodes().unsqueeze(1),
    "ends of edges": lambda g, x, w, f, t: f * torch.stack(g.edges(form="all"), 1).repeat(1, 2),
    "readouts": lambda g, x, w, f, t: tuple(_read_out(g, x, f)),
    "apply_nodes": lambda g, x, w, f, t: _apply_nodes(g, x),
}


def _reversed(g: Any, x: Tensor, f: Tensor, message: Any, reduce: Any) -> Tensor:
    back = dgl.reverse(g)
    back.ndata["x"], back.edata["f"] = x, f
    back.update_all(message("x", "f", "m"), reduce("m", "h"))
    back.apply_edges(fn.v_dot_u("x", "h", "dot"))
    back.apply_edges(
        lambda edges: {"at": edges.dst["x"] * edges.src["h"] + edges.dst["train"][:, None]}
    )
    back.update_all(fn.copy_e("at", "m"), fn.sum("m", "z"))
    out: Tensor = back.ndata["h"] + back.ndata["z"] * back.in_degrees()[:, None]
    return out


def _by_highest(message: str, out: str) -> Any:
    """A reduce function of the user's."""
    return lambda nodes: {out: nodes.mailbox[message].amax(1)}


def _some_edges(g: Any, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_edges`` of the user's for some edges, and their data."""

    def function(edges: Any) -> dict[str, Tensor]:
        ids = edges.edges()[2].unsqueeze(1)
        return {"f": edges.src["x"] * edges.data["f"] + ids, "new": edges.dst["x"] * len(edges)}

    with g.local_scope():
        g.ndata["x"], g.edata["f"] = x, f
        ids = torch.tensor([7, 3, 100])
        g.apply_edges(function, ids)
        return g.edata["f"] + g.edata["new"], g.edges[ids].data["f"]


def _permuted(g: Any, x: Tensor, f: Tensor) -> tuple[Tensor, ...]:
    """Rows of permutations of nodes and of edges as data, as DGL's example of DGI corrupts them."""
    nodes = torch.arange(g.num_nodes()).flip(0)
    edges = torch.arange(g.num_edges()) * 3 % g.num_edges()
    conv = dglnn.GraphConv(WIDTH, 3, weight=False, bias=False, **_LOOSE)
    with g.local_scope():
        g.ndata["x"], g.srcdata["y"] = x[nodes], (x * 2)[nodes // 2]
        g.edata["f"] = f[edges]
        g.update_all(fn.u_mul_e("y", "f", "m"), fn.sum("m", "h"))
        g.apply_edges(fn.u_dot_v("x", "h", "dot"))
        return g.ndata["h"] * x, g.edata["dot"], conv(g, x[nodes]), g.ndata["x"]


def _links(g: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Predictors of DGL's guide on a plain graph of pairs, and a loss with the edges' scores."""
    random = torch.Generator().manual_seed(3)
    pairs = dgl.graph(tuple(torch.randint(50, (2, 30), generator=random)), num_nodes=50)
    with pairs.local_scope():
        pairs.ndata["h"] = x
        pairs.apply_edges(fn.u_dot_v("h", "h", "score"))
        pairs.apply_edges(fn.u_sub_v("h", "h", "difference"))
        pairs.apply_edges(lambda edges: {"both": torch.cat([edges.src["h"], edges.dst["h"]], 1)})
        scores = [dgl.ops.u_dot_v(g, x, x)[:, 0], pairs.edata["score"][:, 0]]
        labels = torch.cat([torch.ones(g.num_edges()), torch.zeros(30)]).double()
        loss = F.binary_cross_entropy_with_logits(torch.cat(scores), labels)
        return x * loss, pairs.edata["difference"], pairs.edata["both"].tanh()


def several_types(g: Any) -> dict[str, Any]:
    """Operations over all relations of a graph of several node and edge types at once."""
    x = {t: g.nodes[t].data["feat"].detach().requires_grad_() for t in g.ntypes}
    results: dict[str, Any] = {}
    with g.local_scope():
        for ntype, rows in x.items():
            g.nodes[ntype].data["x"] = rows
        for name, reduce in (("sum", fn.sum("m", "h")), ("max", fn.max("m", "h"))):
            g.update_all(fn.copy_u("x", "m"), reduce)
            results.update({f"{name} {t}": g.nodes[t].data["h"] for t in ("item", "user")})
        g.apply_edges(fn.u_dot_v("x", "x", "e"))
        scores = {etype: g.edges[etype].data["e"] for etype in g.canonical_etypes}
        results.update({f"dot {key[1]}": rows for key, rows in scores.items()})
        weights = dgl.ops.edge_softmax(g, scores)
        results.update({f"softmax {key[1]}": weights[key] for key in scores})
        functions = {key: (fn.copy_u("x", "m"), fn.mean("m", "h")) for key in g.etypes}
        for name in ("sum", "mean", "max", "min", "stack"):
            g.multi_update_all(functions, name)
            results[f"relations {name}"] = g.nodes["item"].data["h"]
        results["reduce"] = _reduced(g["buys"])
        back = dgl.reverse(g["buys"])
        back.update_all(fn.u_sub_v("x", "x", "m"), fn.max("m", "most"))
        results["reversed"] = back.dstdata["most"]
    total = sum(weighted_sum(rows) for rows in results.values())
    total.backward()  # type: ignore[union-attr]
    results.update({f"gradient {ntype}": rows.grad for ntype, rows in x.items()})
    return {name: whole(rows) for name, rows in results.items()}


def _reduced(g: Any) -> Tensor:
    g.update_all(lambda edges: {"m": edges.src["x"] - edges.dst["x"]}, _squares)
    out: Tensor = g.dstdata["h"]
    return out


def _squares(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].square().sum(1) * (nodes.nodes().unsqueeze(1) % 5)}


def _read_out(g: Any, x: Tensor, f: Tensor) -> Any:
    with g.local_scope():
        g.ndata["x"], g.edata["f"] = x, f
        yield dgl.mean_nodes(g, "x")
        yield dgl.max_nodes(g, "x")
        yield dgl.sum_edges(g, "f")
        yield dgl.softmax_nodes(g, "x")
        total = dgl.sum_nodes(g, "x").tanh()
        yield dgl.broadcast_nodes(g, total) * x
        yield dgl.broadcast_edges(g, total[0])


def _apply_nodes(g: Any, x: Tensor) -> Tensor:
    with g.local_scope():
        g.ndata["x"] = x
        g.apply_nodes(lambda nodes: {"y": nodes.data["x"].exp()})
        out: Tensor = g.ndata["y"]
        return out


def weighted_sum(out: Any) -> Tensor:
    """A sum that weighs all values differently; `out` may be partitioned."""
    count = 1
    for size in out.shape:
        count *= size
    weights = torch.linspace(-1, 1, count, dtype=torch.float64).reshape(out.shape)
    if type(out) is not Tensor:
        from peergraph.fullgraph import like

        weights = like(out, weights)
    total: Tensor = (out * weights).sum()
    return total


def compare(operation: Operation, g: Any, parameters: list[Tensor]) -> list[Tensor | None]:
    """Results of an operation, and gradients of features of nodes and edges and of parameters."""
    random = torch.Generator().manual_seed(4)
    features = torch.randn(g.num_edges(), WIDTH, generator=random, dtype=torch.float64)
    g.edata["f"] = features
    inputs = [g.ndata["feat"], g.edata["w"], g.edata["f"]]
    leaves = [rows.detach().clone().requires_grad_() for rows in inputs]
    result = operation(g, *leaves, g.edata["type"])
    outs = list(result) if isinstance(result, tuple) else [result]
    total = weighted_sum(outs[0])
    for out in outs[1:]:
        total = total + weighted_sum(out)
    total.backward()  # type: ignore[no-untyped-call]
    tensors = [*outs, *(leaf.grad for leaf in (*leaves, *parameters))]
    return [None if rows is None else whole(rows) for rows in tensors]


def whole(rows: Tensor) -> Tensor:
    """All rows, detached."""
    rows = rows.detach()
    if type(rows) is not Tensor:
        rows = rows.full_tensor()  # type: ignore[attr-defined]
    return rows.double()


def is_missing(name: str) -> bool:
    """Whether the installed DGL has no such layer."""
    return name == "GatedGCN" and not hasattr(dglnn, "GatedGCNConv")
