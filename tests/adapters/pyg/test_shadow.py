"""PyG's unmodified ShaDowKHopSampler on shared data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ShaDowKHopSampler
from torch_geometric.utils import sort_edge_index

import peergraph_pyg
from peergraph.testing import run_ranks
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.sampling.uniformity import assert_uniform


def numbered(data: Data) -> Data:
    """The data with attributes by which nodes and edges of a batch are recognised."""
    data.node_id = torch.arange(data.num_nodes)
    data.edge_id = torch.arange(data.num_edges)
    return data


def check(batch: Any, data: Data, seeds: list[int]) -> list[set[int]]:
    """Each subgraph has all edges among its nodes, and the attributes of nodes and edges.

    Returns the nodes of each subgraph.
    """
    batch = batch.cpu()
    n_id, e_id = batch.node_id, batch.edge_id
    assert n_id[batch.root_n_id.cpu()].tolist() == seeds
    assert torch.equal(batch.y.cpu(), data.y[seeds])
    assert torch.equal(batch.x.cpu(), data.x[n_id])
    assert torch.equal(batch.edge_attr.cpu(), data.edge_attr[e_id])
    assert batch.name == "random"
    assert batch.num_graphs == len(seeds)
    row, col = batch.edge_index.cpu()
    assert torch.equal(torch.stack([row, col]), sort_edge_index(batch.edge_index.cpu()))
    assert torch.equal(torch.stack([n_id[row], n_id[col]]), data.edge_index[:, e_id])
    assert torch.equal(batch.batch[row], batch.batch[col])
    nodes = []
    for tree, (begin, end) in enumerate(zip(batch.ptr[:-1], batch.ptr[1:], strict=True)):
        assert set(batch.batch[begin:end].tolist()) == {tree}
        own = n_id[begin:end]
        assert torch.equal(own, own.unique())
        inside = torch.isin(data.edge_index, own).all(0)
        assert torch.equal(e_id[batch.batch[row] == tree].sort().values, inside.nonzero().view(-1))
        nodes.append(set(own.tolist()))
    return nodes


def within(data: Data, root: int, hops: int) -> set[int]:
    nodes = {root}
    for _ in range(hops):
        near = torch.isin(data.edge_index[1], torch.tensor(sorted(nodes)))
        nodes |= set(data.edge_index[0, near].tolist())
    return nodes


@pytest.mark.parametrize("workers", [0, 2])
def test_all_neighbours(workers: int, device: torch.device) -> None:
    """Of every node within the hops."""
    data = numbered(random_data())
    shared = peergraph_pyg.share(data, device=device)
    seeds = data.train_mask.nonzero().view(-1)
    loader = ShaDowKHopSampler(shared, 2, 400, shared.train_mask, batch_size=5, num_workers=workers)
    for batch, of_batch in zip(loader, seeds.split(5), strict=True):
        for root, nodes in zip(
            of_batch.tolist(), check(batch, data, of_batch.tolist()), strict=True
        ):
            assert nodes == within(data, root, 2)


@pytest.mark.parametrize("replace", [False, True])
def test_draws(replace: bool, device: torch.device) -> None:
    """At most `num_neighbors` of a node's neighbours; every node is a seed once."""
    data = numbered(random_data())
    shared = peergraph_pyg.share(data, device=device)
    loader = ShaDowKHopSampler(shared, 1, 3, replace=replace, batch_size=16, shuffle=True)
    roots = []
    for batch in loader:
        of_batch = batch.node_id[batch.root_n_id].tolist()
        for root, nodes in zip(of_batch, check(batch, data, of_batch), strict=True):
            neighbours = within(data, root, 1) - {root}
            assert nodes - {root} <= neighbours
            assert len(nodes) <= 4
        roots += of_batch
    assert sorted(roots) == list(range(60))


def test_distribution(device: torch.device) -> None:
    """Two of five neighbours, every pair as often as another."""
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4, 5], [0] * 5]), node_id=torch.arange(6))
    shared = peergraph_pyg.share(data, device=device)
    loader = ShaDowKHopSampler(shared, 1, 2, torch.zeros(2000, dtype=torch.long), batch_size=500)
    torch.manual_seed(4)
    pairs = [
        batch.node_id[begin + 1 : begin + 3].tolist()
        for batch in loader
        for begin in batch.ptr[:-1]
    ]
    assert_uniform(np.array(pairs), 10)


def test_same_on_the_cpu_and_the_device(device: torch.device) -> None:
    batches = []
    for on in ("cpu", device):
        shared = peergraph_pyg.share(numbered(random_data()), device=on)
        torch.manual_seed(3)
        batches.append(list(ShaDowKHopSampler(shared, 2, 2, batch_size=20)))
    for batch, other in zip(*batches, strict=True):
        for key, value in batch.to_dict().items():
            assert torch.equal(value, other[key].cpu()) if torch.is_tensor(value) else True


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_matrix_of_edges(layout: torch.layout, device: torch.device) -> None:
    data = random_data()
    edges = torch.unique(data.edge_index, dim=1)
    adj_t = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (60, 60)).coalesce()
    matrix = adj_t if layout == torch.sparse_coo else adj_t.to_sparse_csr()
    shared = peergraph_pyg.share(
        Data(x=data.x, node_id=torch.arange(60), adj_t=matrix), device=device
    )
    for batch in ShaDowKHopSampler(shared, 2, 3, batch_size=10):
        assert "edge_index" not in batch
        assert batch.adj_t.layout == layout
        dense = adj_t.to_dense()[batch.node_id.cpu()][:, batch.node_id.cpu()]
        same_tree = (batch.batch[:, None] == batch.batch).cpu()
        assert torch.equal(batch.adj_t.to_dense().cpu(), dense * same_tree)


def _batches() -> list[Any]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(numbered(random_data()) if rank == 0 else None, device="cpu")
    torch.manual_seed(5)
    return [b.node_id.tolist() for b in ShaDowKHopSampler(shared, 2, 3, batch_size=16)]


def test_two_ranks() -> None:
    [alone] = run_ranks(_batches, 1)
    assert run_ranks(_batches, 2) == [alone, alone]


def test_errors() -> None:
    with pytest.raises(NotImplementedError, match="NeighborLoader with disjoint=True"):
        ShaDowKHopSampler(peergraph_pyg.share(random_hetero(), device="cpu"), 2, 3)
    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match="fanouts"):
        ShaDowKHopSampler(shared, 2, -2)
