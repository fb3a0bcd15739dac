"""PyG's ``k_hop_subgraph`` and its deprecated loader of hops, on shared edges."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.explain.algorithm import base
from torch_geometric.loader import NeighborSampler
from torch_geometric.utils import k_hop_subgraph

import peergraph_pyg
from peergraph.testing import run_ranks
from peergraph_pyg import EdgeIndexTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases
from tests.sampling.uniformity import assert_uniform

CITES = ("paper", "cites", "paper")


@named_cases(
    ("node_idx", "hops", "relabel", "flow", "directed"),
    product(
        (7, [3, 50, 3], torch.tensor([58, 0, 21])),
        (0, 1, 2),
        (False, True),
        ("source_to_target", "target_to_source"),
        (False, True),
    ),
)
def test_k_hop_subgraph(
    node_idx: Any, hops: int, relabel: bool, flow: str, directed: bool, device: torch.device
) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    options: dict[str, Any] = {"relabel_nodes": relabel, "flow": flow, "directed": directed}
    results = k_hop_subgraph(node_idx, hops, shared.edge_index, num_nodes=60, **options)
    expected = k_hop_subgraph(node_idx, hops, data.edge_index, num_nodes=60, **options)
    for result, other in zip(results, expected, strict=True):
        assert type(result) is torch.Tensor
        assert torch.equal(result.cpu(), other)


def test_k_hop_subgraph_of_a_type(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    expected = k_hop_subgraph(4, 2, data[CITES].edge_index)
    writes = data["author", "writes", "paper"].edge_index
    of_two_types = k_hop_subgraph(4, 1, shared["author", "writes", "paper"].edge_index)
    for result, other in zip(of_two_types, k_hop_subgraph(4, 1, writes), strict=True):
        assert torch.equal(result.cpu(), other)
    monkeypatch.delattr(EdgeIndexTensor, "materialize")
    for function in (k_hop_subgraph, base.k_hop_subgraph):  # imported before and by PyG
        results = function(4, 2, shared[CITES].edge_index)
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result.cpu(), other)
    with pytest.raises(IndexError, match="out of range"):
        k_hop_subgraph(40, 2, shared[CITES].edge_index)


def hops_of(edge_index: torch.Tensor, seeds: list[int], hops: int) -> list[Any]:
    """All neighbours: of each hop, edges as pairs of node ids, and the numbers of nodes."""
    nodes, result = list(seeds), []
    for _ in range(hops):
        targets = len(nodes)
        edges = torch.isin(edge_index[1], torch.tensor(nodes))
        nodes += sorted(set(edge_index[0, edges].tolist()) - set(nodes))
        result.append((edges.nonzero().view(-1), (len(nodes), targets)))
    return result[::-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_all_hops(workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborSampler(
        shared.edge_index,
        [-1, -1],
        shared.train_mask,
        batch_size=6,
        num_workers=workers,
    )
    seeds = data.train_mask.nonzero().view(-1)
    for (size, n_id, adjs), of_batch in zip(loader, seeds.split(6), strict=True):
        assert size == len(of_batch)
        assert torch.equal(n_id[:size].cpu(), of_batch)
        assert len(n_id.unique()) == len(n_id)
        for adj, (edges, sizes) in zip(
            adjs, hops_of(data.edge_index, of_batch.tolist(), 2), strict=True
        ):
            assert adj.size == sizes
            assert int(adj.edge_index[1].max()) < sizes[1]
            assert torch.equal(adj.e_id.sort().values.cpu(), edges)
            assert torch.equal(n_id[adj.edge_index].cpu(), data.edge_index[:, adj.e_id.cpu()])


def test_one_hop_of_a_type(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborSampler(
        shared[CITES].edge_index,
        [2],
        return_e_id=False,
        transform=lambda *batch: batch,
        batch_size=8,
        shuffle=True,
    )
    edges = set(map(tuple, data[CITES].edge_index.T.tolist()))
    degrees = torch.bincount(data[CITES].edge_index[1], minlength=40)
    seeds = []
    for size, n_id, adj in loader:
        assert adj.e_id is None
        assert set(map(tuple, n_id[adj.edge_index].T.tolist())) <= edges
        drawn = torch.bincount(adj.edge_index[1].cpu(), minlength=size)
        assert torch.equal(drawn, degrees[n_id[:size].cpu()].clamp(max=2))
        seeds += n_id[:size].tolist()
    assert sorted(seeds) == list(range(40))


def test_distribution(device: torch.device) -> None:
    edges = torch.tensor([[1, 2, 3, 4, 5], [0] * 5])
    shared = peergraph_pyg.share(Data(edge_index=edges, num_nodes=6), device=device)
    loader = NeighborSampler(shared.edge_index, [2], torch.tensor([0]), batch_size=1)
    torch.manual_seed(4)
    pairs = [sorted(n_id[1:].tolist()) for _ in range(1000) for _, n_id, _ in loader]
    assert_uniform(np.array(pairs), 10)


def _batches() -> list[Any]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(random_data() if rank == 0 else None, device="cpu")
    torch.manual_seed(5)
    batches: list[Any] = [n.tolist() for _, n, _ in NeighborSampler(shared.edge_index, [3, 2])]
    flow = "target_to_source"
    return [*batches, k_hop_subgraph(3, 2, shared.edge_index, flow=flow)[1].tolist()]


def test_two_ranks() -> None:
    [alone] = run_ranks(_batches, 1)
    assert run_ranks(_batches, 2) == [alone, alone]


def test_two_types_are_refused() -> None:
    shared = peergraph_pyg.share(random_hetero(), device="cpu")
    with pytest.raises(NotImplementedError, match="two node types"):
        NeighborSampler(shared["author", "writes", "paper"].edge_index, [2])
