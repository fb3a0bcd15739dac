"""PyG's ``sample_direction="backward"``: out-neighbours, from the store's other orientation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.sampler
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NeighborSampler

import peergraph_pyg
from peergraph.sampling import RandomWalker
from peergraph.store import Store
from tests.adapters.pyg.graphs import (
    check_batch,
    check_fanouts,
    full_hops,
    random_data,
    random_hetero,
)
from tests.store.graphs import homogeneous_source

WRITES = ("author", "writes", "paper")


def backward(shared: Any, fanouts: Any, **options: Any) -> NeighborSampler:
    return NeighborSampler(shared, fanouts, sample_direction="backward", **options)


def turned(data: Data) -> Data:
    result = data.clone()
    result.edge_index = data.edge_index.flip(0)
    return result


@pytest.mark.parametrize("as_stores", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_neighbours(as_stores: bool, workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    if as_stores:
        shared = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    loader = NodeLoader(
        shared, backward(shared, [-1, -1]), torch.arange(60), batch_size=7, num_workers=workers
    )
    for batch in loader:
        expected = full_hops(data.edge_index.flip(0), batch.input_id, 2)
        assert torch.equal(batch.n_id.cpu(), expected["n_id"])
        assert torch.equal(batch.edge_index.cpu(), expected["edge_index"].flip(0))
        assert torch.equal(batch.e_id.cpu(), expected["e_id"])
        assert batch.num_sampled_nodes == expected["num_sampled_nodes"]
        assert batch.num_sampled_edges == expected["num_sampled_edges"]
        assert torch.equal(batch.edge_attr.cpu(), data.edge_attr[batch.e_id.cpu()])
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])


@pytest.mark.parametrize(
    "option", [{}, {"disjoint": True}, {"weight_attr": "edge_weight"}], ids=str
)
def test_draws(option: dict[str, Any], device: torch.device) -> None:
    """Those of the turned graph, edges and ids turned back."""
    data = random_data()
    data.edge_weight = data.edge_weight % 3
    shared = peergraph_pyg.share(data, device=device)
    other = peergraph_pyg.share(turned(data), device=device)
    nodes = torch.arange(60)
    torch.manual_seed(1)
    batches = list(NodeLoader(shared, backward(shared, [3, 2], **option), nodes, batch_size=16))
    torch.manual_seed(1)
    expected = NodeLoader(other, NeighborSampler(other, [3, 2], **option), nodes, batch_size=16)
    for batch, same in zip(batches, expected, strict=True):
        check_batch(batch, data)
        if not option:
            check_fanouts(same, turned(data), [3, 2])
        assert torch.equal(batch.edge_index, same.edge_index.flip(0))
        for key, value in same.to_dict().items():
            if key != "edge_index" and isinstance(value, torch.Tensor):
                assert torch.equal(batch[key], value), key


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_subgraphs(subgraph_type: str, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    sampler = backward(shared, [2], subgraph_type=subgraph_type)
    for batch in NodeLoader(shared, sampler, torch.arange(60), batch_size=13):
        n_id, e_id = batch.n_id.cpu(), batch.e_id.cpu()
        if subgraph_type == "induced":
            check_batch(batch, data)
            inside = torch.isin(data.edge_index, n_id).all(dim=0)
            assert torch.equal(e_id.sort().values, inside.nonzero().view(-1))
        else:
            pairs = n_id[batch.edge_index.cpu()]
            assert torch.equal(pairs.unique(dim=1), pairs.flip(0).unique(dim=1))


def test_types(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    fanouts = {key: [-1, 0] for key in data.edge_types}
    fanouts[WRITES] = [3, 0]
    sampler = backward(shared, fanouts)
    seeds = torch.arange(25)
    for batch in NodeLoader(shared, sampler, ("author", seeds), batch_size=9):
        for edge_type in data.edge_types:
            e_id = batch[edge_type].e_id.cpu()
            row, col = batch[edge_type].edge_index.cpu()
            ends = torch.stack(
                [batch[edge_type[0]].n_id.cpu()[row], batch[edge_type[2]].n_id.cpu()[col]]
            )
            assert torch.equal(ends, data[edge_type].edge_index[:, e_id])
        degree = torch.bincount(data[WRITES].edge_index[0], minlength=25)
        expected = degree[batch["author"].input_id].clamp(max=3)
        drawn = torch.bincount(batch[WRITES].edge_index[0].cpu(), minlength=len(expected))
        assert torch.equal(drawn, expected)
        assert batch[WRITES].num_edges == sum(batch[WRITES].num_sampled_edges)
        e_id = batch[WRITES].e_id.cpu()
        assert torch.equal(batch[WRITES].edge_attr.cpu(), data[WRITES].edge_attr[e_id])
        # Nothing leads out of authors but writing.
        assert batch["paper", "cites", "paper"].num_edges == 0


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_links(neg_sampling: str | None, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkLoader(shared, backward(shared, [2]), neg_sampling=neg_sampling, batch_size=50)
    for batch in loader:
        check_batch(batch, data)
        index = (
            batch.edge_label_index[:, : len(batch.input_id)]
            if neg_sampling != "triplet"
            else (torch.stack([batch.src_index, batch.dst_pos_index]))
        )
        assert torch.equal(batch.n_id.cpu()[index.cpu()], data.edge_index[:, batch.input_id])


def test_both_directions_at_once() -> None:
    """PyG's sampler that puts the two together."""
    if not hasattr(torch_geometric.sampler, "BidirectionalNeighborSampler"):
        pytest.skip("this version of PyG has no such sampler")
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    sampler = torch_geometric.sampler.BidirectionalNeighborSampler(shared, [-1])
    for batch in NodeLoader(shared, sampler, torch.arange(60), batch_size=10):
        touched = torch.isin(data.edge_index, batch.input_id).any(dim=0)
        assert torch.equal(batch.e_id.unique(), touched.nonzero().view(-1))
        ends = batch.n_id[batch.edge_index]
        assert torch.equal(ends, data.edge_index[:, batch.e_id])


def test_both_directions_at_once_where_hops_find_nothing() -> None:
    """PyG asks for the neighbours of nodes that the other direction found, of which there may be
    none."""
    if not hasattr(torch_geometric.sampler, "BidirectionalNeighborSampler"):
        pytest.skip("this version of PyG has no such sampler")
    data = Data(x=torch.rand(6, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    shared = peergraph_pyg.share(data, device="cpu")
    sampler = torch_geometric.sampler.BidirectionalNeighborSampler(shared, [-1, -1, -1])
    results = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [3], 4: [4], 5: [5]}
    for batch in NodeLoader(shared, sampler, torch.arange(6), batch_size=1):
        assert batch.n_id.sort().values.tolist() == results[int(batch.input_id)]
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_the_other_orientation(device: torch.device) -> None:
    source = homogeneous_source(50, 300)
    with Store.build(source, device=device) as store:
        before = store.memory()
        other = store.reversed()
        assert other is store.reversed()
        assert other.reversed() is store
        assert torch.equal(other.edge_index(), store.edge_index().flip(0))
        assert other.edge_table_names() == store.edge_table_names()
        assert other.edge_table("w") is store.edge_table("w")
        kinds = {allocation.kind for allocation in store.memory().allocations}
        assert "reversed structure" in kinds
        assert len(store.memory().allocations) > len(before.allocations)
        store.add_edge_table("more", torch.rand(300))
        assert "more" in other.edge_table_names()
        starts = torch.arange(50)
        nodes = RandomWalker(other).walk(starts.to(store.device), 1, 3).nodes.cpu()
        stays = nodes[:, 0] == nodes[:, 1]
        edges = {tuple(edge) for edge in store.edge_index().t().tolist()}
        assert all(tuple(step) in edges for step in nodes[~stays].tolist())


def test_errors() -> None:
    data = random_data()
    data.stamp = torch.arange(60)
    shared = peergraph_pyg.share(data, device="cpu")
    with pytest.raises(
        NotImplementedError, match="time_attr: not with sample_direction='backward'"
    ):
        backward(shared, [2], time_attr="stamp")
    with pytest.raises(ValueError, match="must be 'forward' or 'backward', got 'sideways'"):
        NeighborSampler(shared, [2], sample_direction="sideways")


@pytest.mark.skipif(
    not torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch-sparse is not installed"
)
def test_as_pyg_itself() -> None:
    """PyG sorts edges in no stable order, so lists of neighbours are compared as sets."""
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    loaders = [
        NodeLoader(d, backward(d, [-1, -1]), torch.arange(60), batch_size=7) for d in (shared, data)
    ]
    for batch, expected in zip(*loaders, strict=True):
        assert torch.equal(batch.n_id[:4], expected.n_id[:4])
        assert torch.equal(batch.n_id.sort().values, expected.n_id.sort().values)
        assert torch.equal(batch.e_id.sort().values, expected.e_id.sort().values)
        for same in (batch, expected):
            check_batch(same, data)
