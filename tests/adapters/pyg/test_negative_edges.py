"""PyG's negative_sampling and structured_negative_sampling on shared edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric
from scipy import stats
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import (
    batched_negative_sampling,
    is_undirected,
    negative_sampling,
    structured_negative_sampling,
    to_undirected,
)

import peergraph_pyg
from peergraph_pyg.loader import negative_edges

WRITES = ("author", "writes", "paper")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    torch_geometric.seed_everything(3)


@pytest.fixture
def in_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph is so small that it is left to PyG."""
    monkeypatch.setattr(negative_edges, "_LEAST_PAIRS", 0)


@pytest.fixture
def without_copies(in_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("the edges were copied")

    monkeypatch.setattr(peergraph_pyg.EdgeIndexTensor, "materialize", refuse)


def graph(num_nodes: int = 60, num_edges: int = 500) -> Data:
    ends = (torch.rand(2, num_edges).square() * (num_nodes - 2)).long()
    ends[:, 0] = num_nodes - 1  # so that PyG counts as many nodes as there are
    return Data(edge_index=ends, num_nodes=num_nodes)


def numbers(pairs: Tensor, width: int) -> Tensor:
    return pairs[0].cpu() * width + pairs[1].cpu()


@pytest.mark.usefixtures("without_copies")
@pytest.mark.parametrize("method", ["sparse", "dense"])
@pytest.mark.parametrize("count", [None, 150, 0.4, 0])
def test_negatives_are_distinct_and_no_edges(
    device: torch.device, method: str, count: float | None
) -> None:
    data = graph()
    shared = peergraph_pyg.share(data, device=device)
    pairs = negative_sampling(shared.edge_index, None, count, method)
    if count != 0:  # PyG's result is of float32, or an error
        assert pairs.shape == negative_sampling(data.edge_index, None, count, method).shape
    assert pairs.dtype == torch.int64
    assert pairs.device == shared.edge_index.device
    drawn = numbers(pairs, 60)
    assert len(drawn.unique()) == len(drawn)
    assert not torch.isin(drawn, numbers(data.edge_index, 60)).any()
    assert not (pairs[0] == pairs[1]).any()


@pytest.mark.usefixtures("without_copies")
def test_undirected(device: torch.device) -> None:
    data = graph()
    data.edge_index = to_undirected(data.edge_index)
    shared = peergraph_pyg.share(data, device=device)
    pairs = negative_sampling(shared.edge_index, 60, 201, force_undirected=True)
    plain = negative_sampling(data.edge_index, 60, 201, force_undirected=True)
    assert pairs.shape == plain.shape == (2, 200)
    assert is_undirected(pairs)
    assert len(numbers(pairs, 60).unique()) == 200
    assert not torch.isin(numbers(pairs, 60), numbers(data.edge_index, 60)).any()


@pytest.mark.usefixtures("without_copies")
def test_bipartite_and_fewer_nodes(device: torch.device) -> None:
    data = HeteroData()
    data["author"].num_nodes, data["paper"].num_nodes = 30, 50
    data[WRITES].edge_index = torch.stack([torch.randint(30, (200,)), torch.randint(40, (200,))])
    shared = peergraph_pyg.share(data, device=device)
    for size in ((30, 50), (30, 45)):
        pairs = negative_sampling(shared[WRITES].edge_index, size, 300)
        assert pairs.shape == (2, 300)
        assert int(pairs[1].max()) < size[1]
        assert (pairs[0] == pairs[1]).any()  # of two types, equal ids are no loop
        drawn = numbers(pairs, 50)
        assert len(drawn.unique()) == 300
        assert not torch.isin(drawn, numbers(data[WRITES].edge_index, 50)).any()
    largest = int(data[WRITES].edge_index.max()) + 1
    assert negative_edges.count_ids(shared[WRITES].edge_index) == largest


@pytest.mark.usefixtures("in_store")
def test_every_pair_without_an_edge_is_equally_probable() -> None:
    data = graph(12, 40)
    shared = peergraph_pyg.share(data)
    counts = torch.zeros(144, dtype=torch.int64)
    for _ in range(1500):
        pairs = negative_sampling(shared.edge_index, 12, 10)
        counts[numbers(pairs, 12)] += 1
    is_edge = torch.zeros(144, dtype=torch.bool)
    is_edge[numbers(data.edge_index, 12)] = True
    is_edge[torch.arange(12) * 13] = True
    assert not counts[is_edge].any()
    assert stats.chisquare(counts[~is_edge]).pvalue > 1e-4


def test_small_graphs_and_other_sizes_are_left_to_pyg(in_store: None) -> None:
    data = graph()
    shared = peergraph_pyg.share(data)
    assert int(negative_sampling(shared.edge_index, 500, 400).max()) > 60
    full = Data(edge_index=torch.cartesian_prod(torch.arange(5), torch.arange(5)).t(), num_nodes=5)
    assert negative_sampling(peergraph_pyg.share(full).edge_index).shape == (2, 0)
    batch = torch.zeros(60, dtype=torch.int64)
    assert batched_negative_sampling(shared.edge_index, batch).shape == (2, 500)
    with pytest.raises(AssertionError):
        negative_sampling(shared.edge_index, method="none")


@pytest.mark.parametrize("loops", [True, False])
def test_structured(device: torch.device, loops: bool) -> None:
    data = graph()
    shared = peergraph_pyg.share(data, device=device)
    source, destination, negative = structured_negative_sampling(
        shared.edge_index, contains_neg_self_loops=loops
    )
    assert torch.stack([source, destination]).cpu().equal(data.edge_index)
    assert negative.dtype == torch.int64
    assert negative.device == shared.edge_index.device
    drawn = numbers(torch.stack([source, negative]), 60)
    assert not torch.isin(drawn, numbers(data.edge_index, 60)).any()
    assert loops == bool((negative == source).any())
    fewer = structured_negative_sampling(shared.edge_index, 60)[2]
    assert int(fewer.max()) < 60


def test_structured_draws_uniformly() -> None:
    star = torch.stack([torch.zeros(4000, dtype=torch.int64), torch.arange(4000) % 7])
    star[:, 0] = 19
    shared = peergraph_pyg.share(Data(edge_index=star, num_nodes=20))
    source, _, negative = structured_negative_sampling(shared.edge_index)
    counts = torch.bincount(negative[source == 0], minlength=20)
    assert not counts[:7].any()
    assert stats.chisquare(counts[7:]).pvalue > 1e-4


def test_structured_of_nodes_with_edges_to_most() -> None:
    nodes = torch.arange(3000)
    most = torch.stack([torch.zeros_like(nodes), nodes])[:, nodes != 1234]
    shared = peergraph_pyg.share(Data(edge_index=most, num_nodes=3000))
    assert structured_negative_sampling(shared.edge_index)[2].eq(1234).all()
    every = torch.stack([torch.zeros_like(nodes), nodes])
    shared = peergraph_pyg.share(Data(edge_index=every, num_nodes=3000))
    with pytest.raises(ValueError, match="node 0 has edges to all 3000 nodes"):
        structured_negative_sampling(shared.edge_index)
