"""PPRLoader and PPRSampler on shared data."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GCNConv

import peergraph_pyg
from peergraph.reference import ppr as reference
from peergraph.reference.sampling import Csc
from tests.adapters.pyg.graphs import random_data, random_hetero


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
    seen = []
    loader = peergraph_pyg.PPRLoader(
        source,
        6,
        input_nodes=torch.arange(7, 40),
        eps=1e-3,
        batch_size=10,
        num_workers=num_workers,
        transform=lambda batch: seen.append(batch.edge_weight) or batch,
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
    assert num_workers or len(seen) == len(loader)


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
    with pytest.raises(NotImplementedError, match="the graph has types"):
        peergraph_pyg.PPRLoader(shared, 3)
    with pytest.raises(ValueError, match="alpha: expected"):
        peergraph_pyg.PPRLoader(peergraph_pyg.share(random_data()), 3, alpha=2.0)
