"""DGL's layers on graphs that Peergraph's kernels serve: forward and backward as on DGL's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl.nn as dglnn
import torch

from tests.adapters.dgl.served import assert_close, block, grads, leaf, plain_graph, served
from tests.named_case import named_case, named_cases

Edges = str | None

# Constructor, and what goes with the features of nodes: weights, features or types of edges.
CONVS: dict[str, tuple[Callable[[], torch.nn.Module], Edges]] = {
    "SAGE mean": (lambda: dglnn.SAGEConv(6, 5, "mean"), None),
    "SAGE mean weighted": (lambda: dglnn.SAGEConv(6, 5, "mean"), "weight"),
    "SAGE mean, wide": (lambda: dglnn.SAGEConv(6, 9, "mean"), None),
    "SAGE gcn": (lambda: dglnn.SAGEConv(6, 5, "gcn"), None),
    "SAGE pool": (lambda: dglnn.SAGEConv(6, 5, "pool"), None),
    "SAGE lstm": (lambda: dglnn.SAGEConv(6, 5, "lstm"), None),
    "GraphConv both": (lambda: dglnn.GraphConv(6, 5, allow_zero_in_degree=True), None),
    "GraphConv weighted": (
        lambda: dglnn.GraphConv(6, 8, norm="none", allow_zero_in_degree=True),
        "weight",
    ),
    "GraphConv right": (
        lambda: dglnn.GraphConv(6, 5, norm="right", allow_zero_in_degree=True),
        None,
    ),
    "GAT": (lambda: dglnn.GATConv(6, 5, 3, allow_zero_in_degree=True, residual=True), None),
    "GATv2": (lambda: dglnn.GATv2Conv(6, 5, 3, allow_zero_in_degree=True), None),
    "GIN sum": (lambda: dglnn.GINConv(torch.nn.Linear(6, 5), "sum", learn_eps=True), None),
    "GIN max": (lambda: dglnn.GINConv(torch.nn.Linear(6, 5), "max"), None),
    "GIN weighted": (lambda: dglnn.GINConv(torch.nn.Linear(6, 5), "mean"), "weight"),
    "GINE": (lambda: dglnn.GINEConv(torch.nn.Linear(6, 5)), "features"),
    "Edge": (lambda: dglnn.EdgeConv(6, 5, allow_zero_in_degree=True), None),
    "DotGat": (lambda: dglnn.DotGatConv(6, 5, 3, allow_zero_in_degree=True), None),
    "RelGraph basis": (lambda: dglnn.RelGraphConv(6, 5, 4, "basis", 2), "types"),
    "RelGraph bdd": (lambda: dglnn.RelGraphConv(6, 6, 4, "bdd", 3), "types"),
    "RelGraph wide": (lambda: dglnn.RelGraphConv(6, 20, 4, self_loop=True), "types"),
    "NN": (lambda: dglnn.NNConv(6, 5, torch.nn.Linear(6, 30), "mean"), "features"),
    "TAG": (lambda: dglnn.TAGConv(6, 5, k=2), None),
    "SG": (lambda: dglnn.SGConv(6, 5, k=2, allow_zero_in_degree=True), None),
    "APPNP": (lambda: dglnn.APPNPConv(k=3, alpha=0.2), None),
    "Gated": (lambda: dglnn.GatedGraphConv(6, 7, 2, 1), None),
    "PNA": (lambda: dglnn.PNAConv(6, 5, ["mean", "max"], ["identity"], 2.0), None),
}
ON_GRAPHS_ONLY = {"TAG", "SG", "APPNP", "Gated", "PNA", "RelGraph wide"}


def edge_arguments(edges: Edges, graph: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    count = graph.num_edges()
    if edges == "weight":
        return {"edge_weight": torch.rand(count, generator=generator) + 0.5}
    if edges == "types":
        types = torch.randint(0, 4, (count,), generator=generator)
        return {"etypes": types, "norm": torch.rand(count, 1, generator=generator)}
    if edges == "features":
        return {"efeat": torch.randn(count, 6, generator=generator)}
    return {}


def run(conv: torch.nn.Module, graph: Any, device: torch.device, edges: Edges) -> list[Any]:
    """The result, and the gradients of features and parameters."""
    generator = torch.Generator().manual_seed(1)
    feat = torch.randn(graph.num_src_nodes(), 6, generator=generator)
    x = leaf(feat, device)
    arguments = {
        key: value.to(device) if key == "etypes" else leaf(value, device)
        for key, value in edge_arguments(edges, graph).items()
    }
    if "efeat" in arguments:
        out = conv(graph, x, arguments["efeat"])
    elif "etypes" in arguments:
        out = conv(graph, x, arguments["etypes"], norm=arguments["norm"])
    else:
        out = conv(graph, x, **arguments)
    if isinstance(out, tuple):
        out = torch.cat([part.flatten() for part in out])
    collected = [value for value in arguments.values() if value.requires_grad]
    return [out, *grads(out, [x, *collected, *conv.parameters()])]


@named_cases("name", CONVS)
def test_conv(name: str, device: torch.device) -> None:
    make, edges = CONVS[name]
    for graph in [plain_graph] if name in ON_GRAPHS_ONLY else [plain_graph, block]:
        torch.manual_seed(0)
        conv = make()
        g = graph()
        expected = run(copy.deepcopy(conv), g, torch.device("cpu"), edges)
        got = run(conv.to(device), served(g, device), device, edges)
        with named_case(graph.__name__):
            for ours, theirs in zip(got, expected, strict=True):
                assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [dglnn.GATConv, dglnn.GATv2Conv])
def test_attention_weights(kind: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    conv = kind(6, 5, 3, allow_zero_in_degree=True)
    g = plain_graph()
    x = torch.randn(g.num_nodes(), 6)
    _, expected = conv(g, x, get_attention=True)
    _, got = conv.to(device)(served(g, device), x.to(device), get_attention=True)
    assert_close(got, expected)
