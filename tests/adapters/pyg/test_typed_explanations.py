"""`explain` says why layers of several relations do not run as one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.nn import FastRGCNConv, GATConv, GraphConv, HeteroConv, RGCNConv, SAGEConv

from peergraph_pyg import accelerate, explain
from tests.named_case import named_cases

NODES = {"a": 9, "b": 7}
EDGES = [("a", "to", "a"), ("a", "at", "b"), ("b", "of", "a")]


def inputs(columns: int = 6) -> tuple[dict[str, Any], dict[Any, Any]]:
    draw = torch.Generator().manual_seed(0)
    x = {t: torch.randn(count, columns, generator=draw) for t, count in NODES.items()}
    edges = {
        t: torch.stack([torch.randint(NODES[end], (12,), generator=draw) for end in (t[0], t[2])])
        for t in EDGES
    }
    return x, edges


def layers(make: Callable[..., Any], **options: Any) -> Any:
    return accelerate(HeteroConv({t: make((6, 6), 4, **options) for t in EDGES}, aggr="sum"))


def _hooked() -> Any:
    model = layers(SAGEConv)
    model.convs[EDGES[0]].register_forward_hook(lambda module, args, out: out)
    return model


def _other_map() -> Any:
    model = layers(GraphConv)
    model.convs[EDGES[0]].lin_rel.register_forward_hook(lambda module, args, out: out)
    return model


def _one_of_a_kind() -> Any:
    convs: dict[Any, Any] = {
        EDGES[1]: SAGEConv((6, 6), 4),
        EDGES[2]: GATConv((6, 6), 4, add_self_loops=False),
    }
    return accelerate(HeteroConv(convs))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "projected": (lambda: layers(SAGEConv, project=True), "its sources are projected first"),
    "normalised": (lambda: layers(SAGEConv, normalize=True), "its results are normalised"),
    "maximum": (lambda: layers(SAGEConv, aggr="max"), "aggr is max"),
    "hooks": (_hooked, "there are hooks of the layer"),
    "hooks of a map": (_other_map, "a map is the user's, or has hooks"),
}


@named_cases("name", MODELS)
def test_sums_that_run_alone(name: str) -> None:
    make, reason = MODELS[name]
    x, edges = inputs()
    assert f"a to a alone, {reason}" in explain(make(), x, edges)


def test_weights_of_edges() -> None:
    x, edges = inputs()
    weights: dict[Any, Any] = {t: torch.rand(12).requires_grad_() for t in EDGES}
    model = layers(GraphConv)
    text = explain(model, x, edges, edge_weight_dict=weights)
    assert "a to a alone, edge weights need gradients" in text
    with torch.no_grad():
        assert "relations in one pass" in explain(model, x, edges, edge_weight_dict=weights)


def test_layers_that_no_other_is_like() -> None:
    text = explain(_one_of_a_kind(), *inputs())
    for relation in ("a at b", "b of a"):
        assert f"{relation} alone, no other relation has a layer of its reduction" in text


def test_arguments_that_are_no_dicts() -> None:
    x, edges = inputs()
    model = layers(GraphConv)
    weights = {("a", "to", "nobody"): torch.ones(3)}
    assert "there are weights of other relations" in explain(
        model, x, edges, edge_weight_dict=weights
    )


def test_relational_layers() -> None:
    draw = torch.Generator().manual_seed(0)
    x, edge_index = torch.randn(9, 6), torch.randint(9, (2, 20), generator=draw)
    edge_type = torch.arange(20) % 3
    blocks = accelerate(RGCNConv(6, 6, 3, num_blocks=2))
    assert "forward: relation by relation, weights are blocks" in explain(
        blocks, x, edge_index, edge_type
    )
    largest = accelerate(RGCNConv(6, 4, 3, aggr="max"))
    assert "forward: relation by relation, aggr is max" in explain(
        largest, x, edge_index, edge_type
    )
    fast = accelerate(FastRGCNConv(6, 6, 3, num_blocks=2))
    assert "forward: PyG, weights are blocks" in explain(fast, x, edge_index, edge_type)
