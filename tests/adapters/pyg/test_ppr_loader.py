"""PPRLoader and PPRSampler on shared data."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GCNConv

import peergraph_pyg
from peergraph.reference import ppr as reference
from peergraph.reference.sampling import Csc
from tests.adapters.pyg.graphs import random_data, random_hetero

CITES = ("paper", "cites", "paper")


def csc_of(edge_index: torch.Tensor, num_nodes: int) -> Csc:
    order = edge_index[1].argsort(stable=True)
    degrees = torch.bincount(edge_index[1], minlength=num_nodes)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return Csc(indptr.numpy(), edge_index[0][order].numpy())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("pair", [False, True])
def test_batches(num_workers: int, pair: bool, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    source = peergraph_pyg.stores(peergraph_pyg.store_of(shared)) if pair else shared
    edge_weights = []
    loader = peergraph_pyg.PPRLoader(
        source,
        6,
        input_nodes=torch.arange(7, 40),
        eps=1e-3,
        batch_size=10,
        num_workers=num_workers,
        transform=lambda batch: edge_weights.append(batch.edge_weight) or batch,
    )
    csc = csc_of(data.edge_index, 60)
    seeds = []
    for batch in loader:
        nodes, count = batch.n_id.cpu(), batch.batch_size
        assert batch.x.cpu().equal(data.x[nodes])
        assert batch.num_sampled_nodes == [count, len(nodes) - count]
        row, col = batch.edge_index.cpu()
        for i, seed in enumerate(nodes[:count].tolist()):
            ranked, weights = reference.forward_push(csc, seed, 6, 0.15, 1e-3)
            assert nodes[row[col == i]].tolist() == ranked
            want = torch.tensor(weights, dtype=torch.float64).float()
            assert batch.edge_weight.cpu()[col == i].equal(want)
        out = GCNConv(5, 3, add_self_loops=False).to(batch.x.device)(
            batch.x, batch.edge_index, batch.edge_weight
        )
        assert out.shape == (len(nodes), 3)
        seeds += nodes[:count].tolist()
    assert seeds == list(range(7, 40))
    assert num_workers or len(edge_weights) == len(loader)


@pytest.mark.parametrize("pair", [False, True])
def test_a_relation_of_a_graph_with_types(pair: bool, device: torch.device) -> None:
    """Batches are those of the relation alone."""
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    alone = Data(x=data["paper"].x, edge_index=data[CITES].edge_index)
    options = {"eps": 1e-3, "batch_size": 8}
    loader = peergraph_pyg.PPRLoader(
        peergraph_pyg.stores(peergraph_pyg.store_of(shared)) if pair else shared,
        5,
        ("paper", torch.arange(20)),
        edge_type=CITES,
        **options,
    )
    expected = peergraph_pyg.PPRLoader(
        peergraph_pyg.share(alone, device=device), 5, torch.arange(20), **options
    )
    for batch, other in zip(loader, expected, strict=True):
        papers, cites = batch["paper"], batch[CITES]
        assert papers.batch_size == other.batch_size
        assert papers.num_sampled_nodes == other.num_sampled_nodes
        for name in ("x", "n_id", "input_id"):
            assert torch.equal(papers[name], other[name]), name
        assert torch.equal(cites.edge_index, other.edge_index)
        assert torch.equal(cites.edge_weight, other.edge_weight)
        assert "e_id" not in cites
        for edge_type in set(batch.edge_types) - {CITES}:
            assert batch[edge_type].edge_index.shape == (2, 0)


def test_sampler_in_pygs_node_loader(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    sampler = peergraph_pyg.PPRSampler(shared, 4)
    outputs = []
    loader = NodeLoader(
        shared,
        sampler,
        input_nodes=shared.train_mask,
        batch_size=8,
        transform_sampler_output=lambda out: outputs.append(out) or out,
    )
    for batch in loader:
        assert batch.edge_attr is None
        assert batch.edge_index.shape[1] == len(outputs[-1].edge_weight)


def test_errors() -> None:
    with pytest.raises(ValueError, match="share"):
        peergraph_pyg.PPRLoader(random_data(), 3)
    shared = peergraph_pyg.share(random_hetero())
    with pytest.raises(ValueError, match=r"edge_type: needed.*share data.to_homogeneous\(\)"):
        peergraph_pyg.PPRLoader(shared, 3)
    with pytest.raises(ValueError, match="edge_type: .* joins two node types"):
        peergraph_pyg.PPRLoader(shared, 3, edge_type=("author", "writes", "paper"))
    with pytest.raises(ValueError, match="edge_type: the graph has no types"):
        peergraph_pyg.PPRLoader(peergraph_pyg.share(random_data()), 3, edge_type=CITES)
    of_authors = peergraph_pyg.PPRLoader(shared, 3, ("author", None), edge_type=CITES)
    with pytest.raises(ValueError, match="input_nodes: expected 'paper', got 'author'"):
        next(iter(of_authors))
    with pytest.raises(ValueError, match="alpha: expected"):
        peergraph_pyg.PPRLoader(peergraph_pyg.share(random_data()), 3, alpha=2.0)
