"""GraphSAINT's subgraphs against their probabilities, and the normalisation against its formula."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.sampling import SaintSampler, Sample, measure_norm
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.sampling.uniformity import assert_distributed
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source

# Node 3 has no out-edge, node 4 no in-edge, node 5 no edge; an edge comes twice.
COO = torch.tensor([[0, 0, 1, 1, 1, 2, 4, 4, 0], [1, 2, 2, 3, 0, 1, 0, 2, 1]])
MODES: dict[str, dict[str, Any]] = {
    "node": {"mode": "node"},
    "node of DGL": {"mode": "node", "least_out_degree": 1},
    "edge": {"mode": "edge"},
    "edge of PyG": {"mode": "edge", "edge_probability": "degree sums"},
    "walk": {"mode": "walk", "walk_length": 3},
}


@contextmanager
def store_of(coo: Tensor, device: torch.device, num_nodes: int = 6) -> Iterator[Store]:
    source = GraphSource.homogeneous(num_nodes, EdgeSource(coo=coo))
    with Store.build(source, device=device, plan="host") as store:
        yield store


def nodes_of(sampler: SaintSampler, draws: int) -> list[list[int]]:
    return [sampler.sample(seed).nodes[NODE].tolist() for seed in range(draws)]


@pytest.mark.parametrize("mode", MODES)
def test_induced_and_same_everywhere(mode: str, device: torch.device) -> None:
    def sampled(plan: str, on: torch.device) -> tuple[Sample, Tensor]:
        with build(homogeneous_source(), plan, device=on) as store:
            sampler = SaintSampler(store, size=7, **MODES[mode])
            return sampler.sample(2**64 - 1), store.edge_index()

    expected, coo = sampled("host", torch.device("cpu"))
    nodes = expected.nodes[NODE]
    assert torch.equal(nodes, nodes.sort().values)
    inside = torch.isin(coo, nodes).all(0).nonzero().view(-1)
    assert expected.edge_ids is not None
    ids = expected.edge_ids[EDGE]
    assert torch.equal(ids.sort().values, inside)
    assert torch.equal(nodes[torch.stack([expected.row[EDGE], expected.col[EDGE]])], coo[:, ids])
    for plan in PLANS:
        with named_case(plan):
            sample = sampled(plan, device)[0]
            assert torch.equal(sample.nodes[NODE].cpu(), nodes)
            assert sample.edge_ids is not None
            assert torch.equal(sample.edge_ids[EDGE].cpu(), ids)


def probabilities_of_edges(kind: str) -> np.ndarray:
    source, destination = COO.numpy()
    in_degree, out_degree = (np.bincount(ends, minlength=6) for ends in (destination, source))
    if kind == "inverse degrees":
        weight = 1 / out_degree[source] + 1 / in_degree[destination]
    else:
        weight = (in_degree[source] + out_degree[destination]).astype(float)
    shares: np.ndarray = weight / weight.sum()
    return shares


@pytest.mark.parametrize("kind", ["inverse degrees", "degree sums"])
def test_edges(kind: Any, device: torch.device) -> None:
    """One edge at a time: its two ends."""
    weight = probabilities_of_edges(kind)
    expected: dict[tuple[int, ...], float] = {}
    for edge, p in zip(COO.T.tolist(), weight, strict=True):
        pair = tuple(sorted(edge))
        expected[pair] = expected.get(pair, 0) + p
    with store_of(COO, device) as store:
        sampler = SaintSampler(store, "edge", 1, edge_probability=kind)
        draws = [tuple(nodes) for nodes in nodes_of(sampler, 3000)]
    pairs = [pair for pair, p in expected.items() if p > 0]
    counts = np.array([draws.count(pair) for pair in pairs])
    assert counts.sum() == 3000
    assert_distributed(counts, np.array([expected[pair] for pair in pairs]))


def test_edges_without_paths_are_uniform(device: torch.device) -> None:
    """No edge follows another, so all degree sums are 0."""
    coo = torch.tensor([[0, 1, 1], [3, 3, 4]])
    with store_of(coo, device) as store:
        sampler = SaintSampler(store, "edge", 1, edge_probability="degree sums")
        draws = nodes_of(sampler, 1500)
    counts = np.array([draws.count(pair) for pair in ([0, 3], [1, 3], [1, 4])])
    assert_distributed(counts, np.ones(3))


@pytest.mark.parametrize("least", [0, 1])
def test_nodes(least: int, device: torch.device) -> None:
    degrees = np.maximum(np.bincount(COO[0], minlength=6), least)
    with store_of(COO, device) as store:
        sampler = SaintSampler(store, "node", 1, least_out_degree=least)
        draws = [node for nodes in nodes_of(sampler, 3000) for node in nodes]
    counts = np.bincount(draws, minlength=6)
    assert counts[degrees == 0].sum() == 0
    assert_distributed(counts[degrees > 0], degrees[degrees > 0].astype(float))


def test_walks(device: torch.device) -> None:
    """Along out-edges from uniform roots, in the distribution of a Markov chain's paths."""
    step = np.zeros((6, 6))
    for u, v in COO.T.tolist():
        step[u, v] += 1
    for node in range(6):
        step[node] = step[node] / step[node].sum() if step[node].any() else np.eye(6)[node]
    expected: dict[tuple[int, ...], float] = {}
    for a in range(6):
        for b in np.flatnonzero(step[a]):
            for c in np.flatnonzero(step[b]):
                key = tuple(sorted({a, int(b), int(c)}))
                expected[key] = expected.get(key, 0) + step[a, b] * step[b, c] / 6
    with store_of(COO, device) as store:
        draws = [tuple(n) for n in nodes_of(SaintSampler(store, "walk", 1, walk_length=2), 4000)]
    counts = np.array([draws.count(key) for key in expected])
    assert counts.sum() == 4000
    assert_distributed(counts, np.array(list(expected.values())))


@pytest.mark.parametrize("mode", MODES)
def test_norm_is_the_formula_on_its_subgraphs(mode: str, device: torch.device) -> None:
    with store_of(COO, device) as store:
        sampler = SaintSampler(store, size=2, **MODES[mode])
        torch.manual_seed(7)
        norm = measure_norm(sampler, 30)
        torch.manual_seed(7)
        first = int(torch.randint(0, 2**63 - 1, ()))
        node_count, edge_count, count = torch.zeros(6), torch.zeros(9), 0
        while node_count.sum() < 6 * 30:
            for _ in range(64):
                sample = sampler.sample(first + count)
                assert sample.edge_ids is not None
                node_count[sample.nodes[NODE].cpu()] += 1
                edge_count[sample.edge_ids[EDGE].cpu()] += 1
                count += 1
        edge_norm = (node_count[COO[0]] / edge_count).clamp(0, 1e4)
        edge_norm[edge_norm.isnan()] = 0.1
        node_count[node_count == 0] = 0.1
        assert torch.equal(norm.nodes.read(), count / node_count / 6)
        assert torch.equal(norm.edges.read(), edge_norm)


def _norm() -> tuple[list[float], list[float], list[int]]:
    rank = torch.distributed.get_rank()
    torch.manual_seed(7 + rank)
    with Store.build(homogeneous_source() if rank == 0 else None, device="cpu") as store:
        sampler = SaintSampler(store, "walk", 4, walk_length=2)
        norm = measure_norm(sampler, 20)
        sampler = pickle.loads(pickle.dumps(sampler))
        nodes = sampler.sample(3).nodes[NODE].tolist()
        return norm.nodes.read().tolist(), norm.edges.read().tolist(), nodes


def test_norm_on_several_ranks() -> None:
    [alone] = run_ranks(_norm, 1)
    assert run_ranks(_norm, 3) == [alone] * 3


def test_errors() -> None:
    cpu = torch.device("cpu")
    with store_of(COO, cpu) as store:
        for options, error, text in (
            ({"mode": "nodes"}, ValueError, "mode"),
            ({"mode": "edge", "edge_probability": "degrees"}, ValueError, "edge_probability"),
            ({"mode": "node", "size": 0}, ValueError, "size"),
            ({"mode": "walk", "walk_length": 1.5}, TypeError, "walk_length"),
        ):
            with pytest.raises(error, match=text):
                SaintSampler(store, **{"size": 1, **options})  # type: ignore[arg-type]
        copy = pickle.loads(pickle.dumps(store))
        with pytest.raises(RuntimeError, match="only the ranks"):
            SaintSampler(copy, "node", 1)
    with store_of(torch.empty(2, 0, dtype=torch.long), cpu) as store:
        assert SaintSampler(store, "walk", 3).sample(0).num_sampled_edges[EDGE] == [0]
        assert SaintSampler(store, "node", 3, least_out_degree=1).sample(0).nodes[NODE].numel() > 0
        with pytest.raises(ValueError, match="there are none"):
            SaintSampler(store, "edge", 1)
    with (
        Store.build(heterogeneous_source(), device="cpu") as store,
        pytest.raises(ValueError, match="one node type"),
    ):
        SaintSampler(store, "node", 1)
