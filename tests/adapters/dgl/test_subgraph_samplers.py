"""DGL's samplers of subgraphs on graphs over a store: GraphSAINT, Cluster-GCN, ShaDow, and edge
prediction with every way to exclude edges.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph, random_hetero

# isort: split

import dgl
import torch
import torch.distributed as dist
from dgl.dataloading import (
    ClusterGCNSampler,
    DataLoader,
    NeighborSampler,
    SAINTSampler,
    ShaDowKHopSampler,
    as_edge_prediction_sampler,
)

import peergraph_dgl
from peergraph.testing import run_ranks
from tests.sampling.uniformity import assert_distributed

SAINT: dict[str, Any] = {"node": 12, "edge": 6, "walk": (4, 3)}
KINDS = ["share", "from_store"]


def over_store(kind: str, g: Any, device: Any = "cpu", **options: Any) -> Any:
    shared = peergraph_dgl.share(g, device=device)
    if kind == "share":
        return shared
    return peergraph_dgl.from_store(peergraph_dgl.store_of(shared), **options)


def check_induced(subgraph: Any, g: Any) -> None:
    """All edges among the nodes, with the data of both."""
    nodes, edges = subgraph.ndata[dgl.NID].cpu(), subgraph.edata[dgl.EID].cpu()
    expected = dgl.node_subgraph(g, nodes).edata[dgl.EID]
    assert torch.equal(edges.sort().values, expected.sort().values)
    source, destination = (nodes[ends.cpu()] for ends in subgraph.edges())
    assert torch.equal(torch.stack([source, destination]), torch.stack(g.find_edges(edges)))
    for name in ("x", "y"):
        assert torch.equal(subgraph.ndata[name].cpu(), g.ndata[name][nodes])
    assert torch.equal(subgraph.edata["e"].cpu(), g.edata["e"][edges])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", SAINT)
@pytest.mark.parametrize("kind", KINDS)
def test_saint(kind: str, mode: str, workers: int, device: torch.device) -> None:
    g = random_graph()
    if device.type == "cuda" and workers:
        pytest.skip("workers need a store of CPU ranks")
    ours = over_store(kind, g, device)
    sampler = SAINTSampler(mode, SAINT[mode], prefetch_ndata=["x", "y"], prefetch_edata=["e"])
    loader = DataLoader(ours, torch.arange(6), sampler, batch_size=1, num_workers=workers)
    subgraphs = list(loader)
    assert len(subgraphs) == 6
    for subgraph in subgraphs:
        assert 1 <= subgraph.num_nodes() <= 16
        check_induced(subgraph, g)
    assert sampler.prob is None  # DGL's, of a value for each node or edge


def test_saint_draws_by_degree(device: torch.device) -> None:
    """Nodes in proportion to their out-degrees, of which 0 counts as 1."""
    g = dgl.graph(([0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 0, 0]), num_nodes=4)
    ours = over_store("share", g, device)
    sampler = SAINTSampler("node", 1)
    torch.manual_seed(0)
    draws = [int(sampler.sample(ours, None).ndata[dgl.NID]) for _ in range(3000)]
    assert_distributed(np.bincount(draws, minlength=4), np.array([3.0, 2.0, 1.0, 1.0]))


def test_a_sampler_of_two_graphs() -> None:
    sampler = SAINTSampler("node", 5)
    for g in (random_graph(), random_graph(30, 100)):
        ours = over_store("share", g)
        assert int(sampler.sample(ours, None).ndata[dgl.NID].max()) < g.num_nodes()


@pytest.mark.parametrize("kind", KINDS)
def test_clusters(kind: str, device: torch.device, tmp_path: Path) -> None:
    g = random_graph()
    ours = over_store(kind, g, device)
    path = str(tmp_path / "clusters.pkl")
    sampler = ClusterGCNSampler(ours, 5, cache_path=path, prefetch_ndata=["x"])
    nodes = []
    for subgraph in DataLoader(ours, torch.arange(5), sampler, batch_size=2):
        check_induced(subgraph, g)
        nodes.append(subgraph.ndata[dgl.NID].cpu())
    assert torch.equal(torch.cat(nodes).sort().values, torch.arange(60))
    by_dgl = ClusterGCNSampler(g, 5, cache_path=path)
    assert torch.equal(by_dgl.partition_node_ids, sampler.partition_node_ids)
    assert torch.equal(by_dgl.partition_offset, sampler.partition_offset)
    again = ClusterGCNSampler(ours, 5, cache_path=path)
    assert torch.equal(again.partition_node_ids, sampler.partition_node_ids)
    with pytest.raises(dgl.DGLError, match="Number of partitions"):
        ClusterGCNSampler(ours, 4, cache_path=path)


def test_clusters_that_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "clusters.pkl")
    with pytest.raises(NotImplementedError, match="balance_edges"):
        ClusterGCNSampler(over_store("from_store", random_graph()), 3, path, balance_edges=True)
    with pytest.raises(dgl.DGLError, match="several types"):
        ClusterGCNSampler(over_store("from_store", random_hetero()), 3, path)
    assert not Path(path).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_shadow(kind: str, device: torch.device) -> None:
    g = random_graph()
    ours = over_store(kind, g, device)
    sampler = ShaDowKHopSampler([3, 2], prefetch_node_feats=["x", "y"], prefetch_edge_feats=["e"])
    for inputs, outputs, subgraph in DataLoader(ours, torch.arange(20), sampler, batch_size=8):
        check_induced(subgraph, g)
        assert torch.equal(inputs.cpu(), subgraph.ndata[dgl.NID].cpu())
        assert torch.equal(inputs[: len(outputs)].cpu(), outputs.cpu())


REVERSE = torch.cat([torch.arange(400, 800), torch.arange(400)])
EXCLUDES: dict[str, dict[str, Any]] = {
    "none": {},
    "self": {"exclude": "self"},
    "reverse_id": {"exclude": "reverse_id", "reverse_eids": REVERSE},
    "callable": {"exclude": lambda eids: torch.cat([eids, REVERSE[eids]])},
}


@pytest.mark.parametrize("exclude", EXCLUDES)
@pytest.mark.parametrize("inner", ["neighbors", "shadow"])
@pytest.mark.parametrize("kind", KINDS)
def test_excluded_edges(kind: str, inner: str, exclude: str, device: torch.device) -> None:
    g = dgl.add_reverse_edges(random_graph(), copy_edata=True, exclude_self=False)
    assert g.num_edges() == 800
    ours = (
        over_store(kind, g, device, edges=True)
        if kind == "from_store"
        else over_store(kind, g, device)
    )
    of_nodes = NeighborSampler([-1, -1]) if inner == "neighbors" else ShaDowKHopSampler([-1, -1])
    sampler = as_edge_prediction_sampler(of_nodes, **EXCLUDES[exclude])
    targets = torch.arange(0, 400, 7)
    met = 0
    for _, pairs, graphs in DataLoader(ours, targets, sampler, batch_size=8):
        seeds = pairs.edata[dgl.EID].cpu()
        gone = {"none": seeds[:0], "self": seeds}.get(exclude, torch.cat([seeds, REVERSE[seeds]]))
        for graph in graphs if inner == "neighbors" else [graphs]:
            edges = graph.edata[dgl.EID].cpu()
            assert not bool(torch.isin(edges, gone).any())
            met += int(torch.isin(edges, seeds).sum())
    assert (met > 0) == (exclude == "none")


def test_excluded_edges_by_type(device: torch.device) -> None:
    g = random_hetero()
    ours = over_store("share", g, device)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([-1, -1]),
        exclude="reverse_types",
        reverse_etypes={"buys": "bought", "bought": "buys"},
    )
    seeds = {"buys": torch.arange(0, 150, 10)}
    for _, pairs, blocks in DataLoader(ours, seeds, sampler, batch_size=5):
        targets = pairs.edges["buys"].data[dgl.EID].cpu()
        for block in blocks:
            for edge_type in ("buys", "bought"):
                edges = block.edges[edge_type].data[dgl.EID].cpu()
                assert not bool(torch.isin(edges, targets).any())


def _on_ranks(kind: str, path: str) -> list[Any]:
    ours = over_store(kind, random_graph() if dist.get_rank() == 0 else None)
    results: list[Any] = []
    for mode, budget in SAINT.items():
        sampler = SAINTSampler(mode, budget)
        loader = DataLoader(ours, torch.arange(3), sampler, batch_size=1)
        pickle.dumps(sampler)
        torch.manual_seed(7)
        results += [subgraph.ndata[dgl.NID].tolist() for subgraph in loader]
    sampler = ClusterGCNSampler(ours, 4, cache_path=path)
    return [*results, sampler.partition_node_ids.tolist(), sampler.partition_offset.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_several_ranks(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = str(tmp_path / "clusters.pkl")
    [alone] = run_ranks(_on_ranks, 1, kind, path)
    assert run_ranks(_on_ranks, 2, kind, path) == [alone, alone]
