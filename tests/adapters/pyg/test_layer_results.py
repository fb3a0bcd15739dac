"""The layers against PyG's with the same weights: results and all gradients."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from peergraph_pyg import explain
from peergraph_pyg import nn as fast
from tests.named_case import named_cases

from .layer_cases import (
    CHANNELS,
    EDGE_WIDTH,
    NAMES,
    RELATIONS,
    WIDTH,
    arguments,
    assert_same,
    edge_inputs,
    edges,
    gradients,
    is_fast,
    mlp,
    pair,
    script,
)

ATTENTION = ("GATConv", "GATv2Conv")
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SAGEConv", {"aggr": "sum"}),
    ("SAGEConv", {"aggr": "add", "normalize": True}),
    ("SAGEConv", {"aggr": "max"}),
    ("SAGEConv", {"aggr": "min", "root_weight": False}),
    ("SAGEConv", {"project": True, "bias": False}),
    ("GCNConv", {"improved": True}),
    ("GCNConv", {"cached": True}),
    ("GCNConv", {"add_self_loops": False}),
    ("GCNConv", {"normalize": False, "aggr": "mean", "bias": False}),
    ("GATConv", {"heads": 3}),
    ("GATConv", {"heads": 2, "concat": False, "residual": True}),
    ("GATConv", {"heads": 2, "dropout": 0.5}),
    ("GATConv", {"add_self_loops": False, "negative_slope": 0.1}),
    ("GATv2Conv", {"heads": 3}),
    ("GATv2Conv", {"heads": 2, "concat": False, "residual": True, "share_weights": True}),
    ("GATv2Conv", {"heads": 2, "dropout": 0.5, "add_self_loops": False}),
    ("GINConv", {"eps": 0.3, "train_eps": True}),
    ("GINEConv", {"eps": 0.3, "train_eps": True, "aggr": "max"}),
    ("GraphConv", {"aggr": "mean"}),
    ("GraphConv", {"aggr": "max", "bias": False}),
    ("GatedGraphConv", {"aggr": "mean", "bias": False}),
    ("RGCNConv", {"num_bases": 2}),
    ("RGCNConv", {"aggr": "sum", "root_weight": False}),
]


def features(
    rows: int, width: int = WIDTH, device: torch.device | str = "cpu", dtype: Any = torch.float32
) -> Tensor:
    random = torch.Generator().manual_seed(rows + width)
    return torch.randn(rows, width, generator=random).to(device, dtype)


@named_cases("grouped", [False, True])
@named_cases("name", NAMES)
def test_homogeneous(name: str, grouped: bool, device: torch.device) -> None:
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    edge_index = edges(grouped=grouped, device=device)
    args = (features(9, device=device), edge_index, *edge_inputs(name, 40, device))
    # More often than it takes to be worth a transpose.
    for _ in range(6):
        assert_same(theirs, ours, *args)
    assert is_fast(ours, *args)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_in_one_pass(name: str, device: torch.device) -> None:
    args = (features(9, device=device), edges(device=device))
    theirs, ours = (layer.to(device) for layer in pair(name, WIDTH, 4, heads=2))
    for _ in range(6):  # Over the transpose in the end.
        assert_same(theirs, ours, *args, tolerance=1e-4)
    assert "forward: peergraph, attention in one pass" in explain(ours, *args)
    _, uneven = pair(name, WIDTH, 5)  # A GPU pads it to a depth of 8.
    assert "attention in one pass" in explain(uneven.to(device), *args)
    _, wide = pair(name, WIDTH, 260)
    fits = "attention in one pass" if device.type == "cpu" else "1 heads of 260 do not fit"
    assert fits in explain(wide.to(device), *args)


@named_cases("name", NAMES)
def test_float64_and_int32(name: str, device: torch.device) -> None:
    theirs, ours = (layer.double().to(device) for layer in pair(name, *arguments(name)))
    inputs = edge_inputs(name, 40, device, torch.float64)
    x = features(9, device=device, dtype=torch.float64)
    assert_same(theirs, ours, x, edges(device=device), *inputs, tolerance=1e-12)
    if name in ("SAGEConv", "GINConv", "GraphConv"):
        # PyG's own gradients of int32 edge indices are wrong on some devices.
        narrow = edges(device=device, dtype=torch.int32)
        expected = gradients(theirs, x, edges(device=device), *inputs)
        torch.testing.assert_close(gradients(ours, x, narrow, *inputs), expected)
        assert is_fast(ours, x, narrow, *inputs)


@named_cases("name", NAMES)
def test_autocast(name: str, device: torch.device) -> None:
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    args = (features(9, device=device), edges(device=device), *edge_inputs(name, 40, device))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert_same(theirs, ours, *args, tolerance=3e-2)


@named_cases(("name", "options"), OPTIONS)
def test_options(name: str, options: dict[str, Any], device: torch.device) -> None:
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name), **options))
    args = (features(9, device=device), edges(device=device), *edge_inputs(name, 40, device))
    for _ in range(2):
        if options.get("dropout") and device.type == "cuda":
            theirs, ours = theirs.eval(), ours.eval()
        assert_same(theirs, ours, *args)


@named_cases("name", [n for n in NAMES if n not in ("GCNConv", "GatedGraphConv")])
@named_cases("grouped", [False, True])
def test_bipartite(name: str, grouped: bool, device: torch.device) -> None:
    sizes = (9, 5)
    edge_index = edges(*sizes, grouped=grouped, device=device)
    inputs = edge_inputs(name, 40, device)
    same_width = name in ("GINConv", "GINEConv")
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name, bipartite=True)))
    destinations = features(5, WIDTH if same_width else WIDTH + 1, device)
    x = (features(9, device=device), destinations)
    assert_same(theirs, ours, x, edge_index, *inputs)
    if name in ("GATv2Conv", "FastRGCNConv", "RGCNConv"):
        return
    assert_same(theirs, ours, x, edge_index, *inputs, size=sizes)
    assert_same(theirs, ours, (x[0], None), edge_index, *inputs, size=sizes)
    if name != "GATConv":  # PyG adds self loops before it looks at sizes.
        with pytest.raises(ValueError, match="expected size"):
            ours(x, edge_index, *inputs, size=(9, 6))


@pytest.mark.parametrize("name", NAMES)
@named_cases(("nodes", "count"), [(0, 0), (4, 0), (1, 3)])
def test_few_edges(name: str, nodes: int, count: int) -> None:
    theirs, ours = pair(name, *arguments(name))
    args = (features(nodes), edges(nodes, nodes, count), *edge_inputs(name, count))
    try:
        expected = theirs(*args)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(*args)
    else:
        torch.testing.assert_close(ours(*args), expected)


@pytest.mark.parametrize("name", ATTENTION)
def test_edge_features_of_attention(name: str, device: torch.device) -> None:
    for fill in ("mean", 0.5):
        theirs, ours = (
            layer.to(device)
            for layer in pair(name, *arguments(name), heads=2, edge_dim=EDGE_WIDTH, fill_value=fill)
        )
        edge_attr = features(40, EDGE_WIDTH, device)
        assert_same(theirs, ours, features(9, device=device), edges(device=device), edge_attr)
    theirs, ours = pair(name, *arguments(name), edge_dim=1)
    assert_same(theirs, ours, features(9), edges(), features(40, 1).flatten())


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_weights_are_returned(name: str) -> None:
    theirs, ours = pair(name, *arguments(name), heads=2)
    expected = theirs(features(9), edges(), return_attention_weights=True)
    actual = ours(features(9), edges(), return_attention_weights=True)
    torch.testing.assert_close(actual, expected)


def test_edge_features_are_widened() -> None:
    theirs, ours = pair("GINEConv", mlp(), edge_dim=EDGE_WIDTH)
    assert_same(theirs, ours, features(9), edges(), features(40, EDGE_WIDTH))
    _, narrow = pair("GINEConv", mlp())
    with pytest.raises(ValueError, match="feature dimensionalities do not match"):
        narrow(features(9), edges(), features(40, EDGE_WIDTH))


def test_relations_of_embeddings_and_blocks() -> None:
    theirs, ours = pair("RGCNConv", 9, CHANNELS, RELATIONS)
    (edge_type,) = edge_inputs("RGCNConv", 40)
    for _ in range(2):
        assert_same(theirs, ours, None, edges(), edge_type)
    theirs, ours = pair("RGCNConv", 8, 4, RELATIONS, num_blocks=2)
    assert_same(theirs, ours, features(9, 8), edges(), edge_type)


@named_cases("name", NAMES)
@pytest.mark.parametrize("options", [{"sparse_size": (9, 9), "sort_order": "col"}, {}])
def test_edge_index_of_pyg(name: str, options: dict[str, Any]) -> None:
    theirs, ours = pair(name, *arguments(name))
    edge_index = EdgeIndex(edges(grouped=True), **options)
    args = (features(9), edge_index, *edge_inputs(name, 40))
    for _ in range(2):
        assert_same(theirs, ours, *args)
    assert is_fast(ours, *args) or name == "FastRGCNConv"  # PyG's code runs
    if name in ("GCNConv", "GATConv", "GATv2Conv"):
        assert_same(theirs, ours, *args[:2])
        assert "forward: peergraph" in explain(ours, *args[:2])


@named_cases("name", [name for name in NAMES if name.startswith(("SAGE", "GCN", "GAT", "Graph"))])
def test_lazy_sizes(name: str) -> None:
    torch.manual_seed(0)
    ours = getattr(fast, name)(-1, CHANNELS)
    args = (features(9), edges(), *edge_inputs(name, 40))
    first = ours(*args)
    theirs, again = pair(name, *arguments(name))
    theirs.load_state_dict(ours.state_dict())
    again.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(first, theirs(*args))
    torch.testing.assert_close(again(*args), first)


@named_cases("name", NAMES)
def test_looks_like_pyg(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    args = (features(9), edges(), *edge_inputs(name, 40))
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is type(ours)
        torch.testing.assert_close(copied(*args), theirs(*args))


# PyG's own GATConv, GATv2Conv and RGCNConv cannot be compiled alone.
@pytest.mark.parametrize("name", [n for n in NAMES if n[:3] not in ("GAT", "RGC")])
def test_torchscript_sees_pyg(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    args = (features(9), edges(), *edge_inputs(name, 40))
    expected = theirs(*args)
    torch.testing.assert_close(script(ours)(*args), expected)
    torch.testing.assert_close(ours(*args), expected)


def test_features_of_no_edges_have_no_gradients() -> None:
    """As in PyG: optimizers skip the parameters, momentum and weight decay included."""
    theirs, ours = pair("GATConv", WIDTH, CHANNELS, edge_dim=EDGE_WIDTH, add_self_loops=False)
    for layer in (theirs, ours):
        none = torch.empty(2, 0, dtype=torch.int64), torch.empty(0, EDGE_WIDTH)
        layer(torch.ones(3, WIDTH), *none).sum().backward()
        assert layer.att_edge.grad is None
        assert layer.lin_edge.weight.grad is None
