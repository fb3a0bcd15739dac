"""PyG's unmodified NeighborLoader on shared heterogeneous data."""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler.base import NumNeighbors

import peergraph_pyg
from tests.adapters.pyg.graphs import check_typed_batch, full_hops, random_hetero

WRITES = ("author", "writes", "paper")
REV_WRITES = ("paper", "rev_writes", "author")
CITES = ("paper", "cites", "paper")
PRINTS = ("venue", "prints", "paper")


def check(batch: Any, data: HeteroData) -> None:
    """Nodes, edges and attributes of every type are those of the original data, by hop."""
    check_typed_batch(batch, data)
    for node_type in data.node_types:
        assert sum(batch[node_type].num_sampled_nodes) == len(batch[node_type].n_id)
    for edge_type in data.edge_types:
        assert sum(batch[edge_type].num_sampled_edges) == len(batch[edge_type].e_id)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("disjoint", [False, True])
def test_batches(num_workers: int, disjoint: bool, device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(
        shared,
        [3, 2],
        input_nodes=("paper", shared["paper"].train_mask),
        batch_size=6,
        num_workers=num_workers,
        disjoint=disjoint,
    )
    results = []
    for batch in loader:
        check(batch, data)
        size = batch["paper"].batch_size
        assert torch.equal(batch["paper"].n_id[:size].cpu(), batch["paper"].input_id)
        assert batch.title == "library"
        results.append(batch["paper"].input_id)
        if disjoint:
            assert batch["paper"].batch[:size].tolist() == list(range(size))
            for source, relation, target in data.edge_types:
                row, col = batch[source, relation, target].edge_index
                assert torch.equal(batch[source].batch[row], batch[target].batch[col])
    assert torch.equal(torch.cat(results), data["paper"].train_mask.nonzero().view(-1))


def test_all_neighbours_of_one_hop(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([9, 0, 33])
    loader = NeighborLoader(shared, [-1], input_nodes=("paper", seeds), batch_size=3)
    batch = next(iter(loader))
    check(batch, data)
    for edge_type in (WRITES, CITES, PRINTS):
        edges = torch.isin(data[edge_type].edge_index[1], seeds).nonzero().view(-1)
        assert torch.equal(batch[edge_type].e_id.cpu().sort().values, edges)
    assert batch[REV_WRITES].e_id.numel() == 0
    assert batch[REV_WRITES].num_sampled_edges == [0]


def test_fanouts_by_edge_type(device: torch.device) -> None:
    """With citations alone, the batch is that of the citation graph."""
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    seeds = torch.tensor([4, 8])
    for fanouts in (
        NumNeighbors({CITES: [-1, -1]}, default=[0, 0]),
        {CITES: [-1, -1], WRITES: [0, 0], REV_WRITES: [0, 0], PRINTS: [0, 0]},
    ):
        loader = NeighborLoader(shared, fanouts, input_nodes=("paper", seeds), batch_size=2)
        batch = next(iter(loader))
        expected = full_hops(data[CITES].edge_index, seeds, 2)
        assert torch.equal(batch["paper"].n_id.cpu(), expected["n_id"])
        assert torch.equal(batch[CITES].edge_index.cpu(), expected["edge_index"])
        assert torch.equal(batch[CITES].e_id.cpu(), expected["e_id"])
        assert batch["paper"].num_sampled_nodes == expected["num_sampled_nodes"]
        assert batch[CITES].num_sampled_edges == expected["num_sampled_edges"]
        assert batch["author"].num_nodes == 0
        assert batch["author"].x.shape == (0, 3)


def test_bad_fanouts() -> None:
    shared = peergraph_pyg.share(random_hetero(), device="cpu")
    with pytest.raises(ValueError, match="Missing number of neighbors"):
        NeighborLoader(shared, {CITES: [1]}, input_nodes="paper")
    with pytest.raises(ValueError, match="Not all edge types|Missing number of neighbors"):
        NeighborLoader(shared, {("a", "b", "c"): [1]}, input_nodes="paper")
    with pytest.raises(TypeError, match="num_neighbors must be a list of ints, or a dict of such"):
        NeighborLoader(shared, dict.fromkeys(shared.edge_types, 3), input_nodes="paper")


@pytest.mark.parametrize("stores", [False, True])
def test_inputs_without_a_type(stores: bool) -> None:
    shared = peergraph_pyg.share(random_hetero(), device="cpu")
    if stores:
        shared = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    some = torch.arange(3)
    for nodes in (None, "film", ("film", some), some, ("paper", some, some)):
        with pytest.raises(ValueError, match="input_nodes must be one of the node types .'paper'"):
            NeighborLoader(shared, [2], input_nodes=nodes)
    for links in (
        None,
        "paper",
        torch.stack([some, some]),
        ("a", "b", "c"),
        (("a", "b", "c"), None),
    ):
        with pytest.raises(ValueError, match="edge_label_index must be one of the edge types"):
            LinkNeighborLoader(shared, [2], edge_label_index=links)


def test_bidirectional(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_hetero(), device=device)
    loader = NeighborLoader(
        shared, [2, 2], input_nodes="paper", batch_size=5, subgraph_type="bidirectional"
    )
    with pytest.warns(UserWarning, match="prints"):
        batch = next(iter(loader))
    there = {tuple(pair) for pair in batch[WRITES].edge_index.t().tolist()}
    back = {tuple(pair) for pair in batch[REV_WRITES].edge_index.flip(0).t().tolist()}
    assert there == back


def test_deleted_edge_types_are_not_sampled(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    for graph in (shared, data):
        del graph[WRITES]
        del graph[PRINTS]
        del graph["venue"]
    batch = next(iter(NeighborLoader(shared, [3, 3], input_nodes="paper", batch_size=5)))
    check(batch, data)
    assert batch["author"].num_nodes == 0
    assert WRITES not in batch.edge_types
    assert batch.node_types == data.node_types


def test_one_node_type_is_still_heterogeneous(device: torch.device) -> None:
    data = HeteroData()
    data["page"].x = torch.rand(5, 2)
    data["page", "links", "page"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    shared = peergraph_pyg.share(data, device=device)
    batch = next(iter(NeighborLoader(shared, [-1, -1], input_nodes="page", batch_size=5)))
    assert isinstance(batch, HeteroData)
    assert batch["page", "links", "page"].e_id.sort().values.tolist() == [0, 1, 2]


def of_storages(batch: HeteroData) -> dict[Any, list[Any]]:
    """The names and values of all attributes, in their order."""
    return {
        store._key: [(k, v.tolist() if isinstance(v, Tensor) else v) for k, v in store.items()]
        for store in batch.stores
    }


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("change", ["none", "ids of edges", "transform", "another type", "unused"])
def test_what_pyg_adds_to_edges(link: bool, change: str) -> None:
    """PyG's own code makes the same batch of the same sample, attribute by attribute."""
    data = random_hetero()
    if change == "ids of edges":
        data[WRITES].e_id = torch.arange(150) + 1000
    shared = peergraph_pyg.share(data, device="cpu")
    options: dict[str, Any] = {"batch_size": 5, "num_neighbors": [3, 2]}
    if change == "transform":
        options["transform_sampler_output"] = lambda out: out
    kind = LinkNeighborLoader if link else NeighborLoader
    if link:
        loader = kind(shared, edge_label_index=(CITES, None), neg_sampling="binary", **options)
    else:
        loader = kind(shared, input_nodes="paper", **options)
    if change == "another type":
        shared["venue", "prints", "author"].edge_index = torch.tensor([[0, 1], [1, 2]])
    if change == "unused":
        del loader.data[PRINTS]
    rows = torch.arange(5)
    sampler = loader.link_sampler if link else loader.node_sampler
    inputs = loader.input_data[rows]
    filter_fn: Any = kind.filter_fn
    batches = []
    for collate in (filter_fn.__wrapped__, filter_fn):
        torch.manual_seed(1)
        negatives = [loader.neg_sampling] if link else []
        sample = sampler.sample_from_edges if link else sampler.sample_from_nodes
        out = sample(inputs, *negatives)
        batches.append(collate(loader, out))
        assert out.edge is not None
        assert out.num_sampled_edges is not None
    assert of_storages(batches[1]) == of_storages(batches[0])


def test_python_does_not_grow_with_relations() -> None:
    """A batch takes few calls of Python for each relation."""
    calls = []
    for count in (100, 200):
        data = HeteroData()
        data["entity"].x = torch.randn(50, 2)
        for relation in range(count):
            edges = torch.randint(50, (2, 30))
            data["entity", str(relation), "entity"].edge_index = edges
        shared = peergraph_pyg.share(data, device="cpu")
        loader = NeighborLoader(shared, [2, 2], input_nodes="entity", batch_size=5)
        loader(torch.arange(5))
        profile = cProfile.Profile()
        profile.runcall(loader, torch.arange(5))
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[1] - calls[0] < 15 * 100
