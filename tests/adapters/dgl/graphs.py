"""Graphs for the tests of the DGL adapter; importing this skips the tests without DGL."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

import peergraph_dgl  # noqa: F401  # so that DGL can be imported

# isort: split

import dgl
import torch


def random_graph(num_nodes: int = 60, num_edges: int = 400, seed: int = 0) -> Any:
    """With parallel edges, self loops, and data of many dtypes."""
    torch.manual_seed(seed)
    g = dgl.graph(
        (torch.randint(num_nodes, (num_edges,)), torch.randint(num_nodes, (num_edges,))),
        num_nodes=num_nodes,
    )
    g.ndata["x"] = torch.randn(num_nodes, 5)
    g.ndata["y"] = torch.randint(4, (num_nodes,))
    g.ndata["train"] = torch.rand(num_nodes) < 0.6
    g.ndata["half"] = torch.randn(num_nodes, 2, 3).to(torch.bfloat16)
    g.ndata["byte"] = torch.randint(256, (num_nodes, 3), dtype=torch.uint8)
    g.edata["w"] = torch.rand(num_edges)
    g.edata["mask"] = torch.rand(num_edges) < 0.5
    g.edata["e"] = torch.randn(num_edges, 3, dtype=torch.float64)
    return g


def random_hetero(seed: int = 0) -> Any:
    """Three node types, one of them without data; a relation without edges."""
    torch.manual_seed(seed)
    counts = {"user": 30, "item": 50, "tag": 4}

    def edges(source: str, destination: str, count: int) -> Any:
        return torch.randint(counts[source], (count,)), torch.randint(counts[destination], (count,))

    g = dgl.heterograph(
        {
            ("user", "buys", "item"): edges("user", "item", 200),
            ("item", "bought", "user"): edges("item", "user", 150),
            ("user", "knows", "user"): edges("user", "user", 100),
            ("tag", "on", "item"): edges("tag", "item", 0),
        },
        num_nodes_dict=counts,
    )
    g.nodes["user"].data["x"] = torch.randn(30, 3)
    g.nodes["item"].data["x"] = torch.randn(50, 7)
    g.nodes["item"].data["y"] = torch.randint(3, (50,))
    g.edges["buys"].data["w"] = torch.rand(200)
    g.edges["knows"].data["since"] = torch.randint(2000, 2020, (100,))
    return g


def assert_same_graph(result: Any, expected: Any) -> None:
    """Types, nodes, edges with their ids, and all data."""
    assert type(result) is type(expected)
    assert result.ntypes == expected.ntypes
    assert result.canonical_etypes == expected.canonical_etypes
    assert result.idtype == expected.idtype
    for node_type in expected.ntypes:
        assert result.num_nodes(node_type) == expected.num_nodes(node_type)
        assert_same_data(result.nodes[node_type].data, expected.nodes[node_type].data)
    for edge_type in expected.canonical_etypes:
        assert torch.equal(edges_by_id(result, edge_type), edges_by_id(expected, edge_type))
        assert_same_data(result.edges[edge_type].data, expected.edges[edge_type].data)


def edges_by_id(g: Any, edge_type: Any) -> torch.Tensor:
    """[2, edges]; which orders DGL offers depends on the formats."""
    source, destination, ids = g.edges(form="all", order=None, etype=edge_type)
    order = ids.argsort()
    assert ids[order].tolist() == list(range(g.num_edges(edge_type)))
    return torch.stack([source, destination])[:, order]


def assert_same_data(result: Any, expected: Any) -> None:
    """All columns of a frame."""
    assert set(result.keys()) == set(expected.keys())
    for name, values in expected.items():
        assert result[name].dtype == values.dtype
        assert torch.equal(result[name].clone(), values), name
