"""``data.subgraph`` and PyG's unmodified RandomNodeLoader on shared data: those of plain data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import RandomNodeLoader

import peergraph_pyg
from peergraph.testing import run_ranks
from peergraph_pyg import EdgeIndexTensor
from tests.adapters.pyg.graphs import random_data, random_hetero

PAPERS = torch.tensor([7, 3, 20, 39, 0])


def assert_same(batch: Any, expected: Any) -> None:
    """Equal attributes, all of them plain."""
    for storage, other in zip(batch.stores, expected.stores, strict=True):
        assert set(storage.keys()) == set(other.keys())
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                assert type(storage[key]) is torch.Tensor
                assert torch.equal(storage[key].cpu(), value), key
            else:
                assert storage[key] == value


def listed(data: Any) -> Any:
    """The data with a list of a value for each node, too."""
    data.names = [f"node {i}" for i in range(data.num_nodes)]
    return data


@pytest.mark.parametrize(
    "subset",
    [torch.tensor([5, 0, 59, 12, 30]), torch.arange(60) % 3 == 1, torch.empty(0, dtype=torch.long)],
    ids=["ids", "mask", "none"],
)
def test_subgraph(subset: torch.Tensor, device: torch.device) -> None:
    data = listed(random_data())
    shared = peergraph_pyg.share(data, device=device)
    assert_same(shared.subgraph(subset), data.subgraph(subset))


def test_subgraph_of_types(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    subset = {"paper": PAPERS, "author": torch.arange(25) < 9, "venue": torch.arange(6)}
    assert_same(shared.subgraph(subset), data.subgraph(subset))


def test_edges_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    monkeypatch.delattr(EdgeIndexTensor, "materialize")
    shared.subgraph(torch.arange(5))
    list(RandomNodeLoader(shared, 3))


def test_nodes_of_a_type_that_is_not_named_stay() -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device="cpu")
    result, expected = (graph.subgraph({"paper": PAPERS}) for graph in (shared, data))
    assert torch.equal(result["author"].x, data["author"].x)
    for t in data.edge_types:
        assert torch.equal(result[t].edge_index, expected[t].edge_index)


def test_repeated_nodes() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    subset = torch.tensor([3, 3, 9])
    assert torch.equal(shared.subgraph(subset).x, data.subgraph(subset).x)


def test_changed_data_is_read_as_pyg_does() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    shared.edge_index = data.edge_index[:, :100]
    subset = torch.arange(20)
    plain = Data(edge_index=data.edge_index[:, :100], num_nodes=60).subgraph(subset)
    assert torch.equal(shared.subgraph(subset).edge_index, plain.edge_index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [random_data, random_hetero])
def test_random_nodes(make: Any, workers: int, device: torch.device) -> None:
    data = make()
    shared = peergraph_pyg.share(data, device=device)
    for shuffle in (False, True):
        torch.manual_seed(2)
        expected = list(RandomNodeLoader(data, 4, shuffle=shuffle))
        torch.manual_seed(2)
        loader = RandomNodeLoader(shared, 4, shuffle=shuffle, num_workers=workers)
        for batch, other in zip(loader, expected, strict=True):
            assert type(batch) is type(data)
            assert_same(batch, other)


def test_random_nodes_of_a_matrix(device: torch.device) -> None:
    data = random_data()
    edges = torch.unique(data.edge_index, dim=1)
    dense = torch.zeros(60, 60)
    dense[edges[1], edges[0]] = 1
    shared = peergraph_pyg.share(Data(x=data.x, adj_t=dense.to_sparse_csr()), device=device)
    for batch, nodes in zip(RandomNodeLoader(shared, 4), torch.arange(60).view(4, 15), strict=True):
        assert torch.equal(batch.adj_t.to_dense().cpu(), dense[nodes][:, nodes])
        assert torch.equal(batch.x.cpu(), data.x[nodes])


def _batches(typed: bool) -> list[Any]:
    rank = torch.distributed.get_rank()
    make = random_hetero if typed else random_data
    shared: Data | HeteroData = peergraph_pyg.share(make() if rank == 0 else None, device="cpu")
    torch.manual_seed(5)
    return [batch.to_dict() for batch in RandomNodeLoader(shared, 3, shuffle=True)]


@pytest.mark.parametrize("typed", [False, True])
def test_two_ranks(typed: bool) -> None:
    [alone] = run_ranks(_batches, 1, typed)
    for batches in run_ranks(_batches, 2, typed):
        assert str(batches) == str(alone)


class _MyLoader(RandomNodeLoader):  # type: ignore[misc]
    """A user's subclass, which stays PyG's."""


def test_random_nodes_of_changed_data_and_of_subclasses() -> None:
    data = random_data()
    changed = peergraph_pyg.share(data, device="cpu")
    changed.edge_index = data.edge_index[:, :100]
    plain = data.clone()
    plain.edge_index, plain.edge_attr = plain.edge_index[:, :100], None
    for kind in (RandomNodeLoader, _MyLoader):
        for batch, other in zip(kind(changed, 4), kind(plain, 4), strict=True):
            assert torch.equal(batch.edge_index, other.edge_index)
            assert torch.equal(batch.x, other.x)
        shared = peergraph_pyg.share(data, device="cpu")
        for batch, other in zip(kind(shared, 4), kind(data, 4), strict=True):
            assert_same(batch, other)
