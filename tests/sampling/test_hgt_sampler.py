"""`HgtSampler`: budgets and draws against their definition, and samples that do not depend on where
the graph is.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.sampling import HgtSampler, Sample
from peergraph.store import EdgeSource, GraphSource, Store
from tests.named_case import named_case
from tests.sampling.uniformity import assert_distributed
from tests.store.graphs import PLANS, build, heterogeneous_source

CITES, WRITES, READ_BY = ("p", "cites", "p"), ("a", "writes", "p"), ("p", "read by", "a")
Edges = Mapping[tuple[str, str, str], list[tuple[int, int]]]


@contextmanager
def store_of(num_nodes: dict[str, int], edges: Edges, device: torch.device) -> Iterator[Store]:
    source = GraphSource(
        num_nodes,
        {t: EdgeSource(coo=torch.tensor(pairs).view(-1, 2).T) for t, pairs in edges.items()},
    )
    with Store.build(source, device=device, plan="host") as store:
        yield store


def equal(a: Sample, b: Sample) -> bool:
    pairs: list[tuple[Any, Any]] = [
        (a.nodes, b.nodes),
        (a.row, b.row),
        (a.col, b.col),
        (a.edge_ids, b.edge_ids),
    ]
    return all(
        x.keys() == y.keys() and all(torch.equal(x[t].cpu(), y[t].cpu()) for t in x)
        for x, y in pairs
    )


def test_same_on_every_plan_and_device(device: torch.device) -> None:
    seeds = {"user": torch.tensor([3, 3, 17]), "item": torch.tensor([5])}

    def sampled(plan: str, on: torch.device) -> Sample:
        with build(heterogeneous_source(10), plan, device=on) as store:
            return HgtSampler(store, {"user": [3, 2], "item": [4, 2]}).sample(seeds, 2**64 - 1)

    expected = sampled("host", torch.device("cpu"))
    assert [len(expected.nodes[t]) for t in ("user", "item")] == [3 + 5, 1 + 6]
    for plan in PLANS:
        with named_case(plan):
            assert equal(sampled(plan, device), expected)


def test_nodes_and_edges(device: torch.device) -> None:
    """Seeds first, other nodes once, each an in-neighbour; all edges among them, with their ids."""
    source = heterogeneous_source(10)
    with Store.build(source, device=device, plan="host") as store:
        sampler = pickle.loads(pickle.dumps(HgtSampler(store, {"user": [8, 8], "item": [8, 8]})))
        sample = sampler.sample({"item": torch.tensor([7, 7, 150])}, 3)
        coo = {t: store.edge_index(t) for t in store.edge_types}
    nodes = {t: ids.cpu() for t, ids in sample.nodes.items()}
    assert nodes["item"][:3].tolist() == [7, 7, 150]
    assert len(nodes["item"]) == 3 + 8  # the first hop has users only
    assert len(nodes["user"]) == 16
    for ids in (nodes["item"][1:], nodes["user"]):
        assert len(ids.unique()) == len(ids)
    assert sample.edge_ids is not None
    for t, (ends, others) in coo.items():
        inside = torch.isin(ends, nodes[t[0]]) & torch.isin(others, nodes[t[2]])
        ids = sample.edge_ids[t].cpu()
        row, col = sample.row[t].cpu(), sample.col[t].cpu()
        assert torch.equal(nodes[t[0]][row], ends[ids])
        assert torch.equal(nodes[t[2]][col], others[ids])
        repeated = int((inside & (others == 7)).sum()) if t[2] == "item" else 0
        assert torch.equal(ids.unique(), inside.nonzero().view(-1))
        assert len(ids) == int(inside.sum()) + repeated  # of the seed that comes twice


def test_takes_all_candidates(device: torch.device) -> None:
    """Large numbers give every node within the hops."""
    generator = torch.Generator().manual_seed(0)
    edges = {
        t: torch.randint(20, (35, 2), generator=generator).tolist()
        for t in (CITES, WRITES, READ_BY)
    }
    near: dict[str, set[int]] = {"p": {1, 2}, "a": set()}
    for _ in range(3):
        before = {t: set(ids) for t, ids in near.items()}
        for t, pairs in edges.items():
            near[t[0]] |= {u for u, v in pairs if v in before[t[2]]}
    with store_of({"p": 20, "a": 20}, edges, device) as store:
        sampler = HgtSampler(store, {"p": [99] * 3, "a": [99] * 3})
        sample = sampler.sample({"p": torch.tensor([1, 2])}, 0)
    for node_type, ids in near.items():
        assert sorted(sample.nodes[node_type].tolist()) == sorted(ids)


def test_distribution(device: torch.device) -> None:
    """Two of four candidates, one after the other in proportion to the square of their budget."""
    # Papers 0, 1, 2 are seeds; their lists have 2, 4 and 1 in-neighbours.
    pairs = [(3, 0), (4, 0), (3, 1), (4, 1), (5, 1), (6, 1), (4, 2)]
    budget: dict[int, float] = defaultdict(float)
    degrees: dict[int, int] = defaultdict(int)
    for _, v in pairs:
        degrees[v] += 1
    for u, v in pairs:
        budget[u] += 1 / degrees[v]
    weight = np.array([budget[u] for u in (3, 4, 5, 6)]) ** 2
    weight /= weight.sum()
    draws = np.zeros((4, 4))
    with store_of({"p": 7}, {CITES: pairs}, device) as store:
        sampler = HgtSampler(store, {"p": [2]})
        for seed in range(3000):
            picked = sampler.sample({"p": torch.tensor([0, 1, 2])}, seed).nodes["p"][3:].tolist()
            draws[min(picked) - 3, max(picked) - 3] += 1
    both = np.outer(weight, weight)
    expected = both / (1 - weight)[:, None] + both / (1 - weight)[None, :]
    upper = np.triu_indices(4, 1)
    assert draws[upper].sum() == 3000
    assert_distributed(draws[upper], expected[upper])


def test_later_hops_remember_budgets(device: torch.device) -> None:
    """A candidate of the first hop that was not drawn keeps its weight for the second."""
    pairs = [(1, 0), (2, 0), (3, 1), (3, 2)]
    with store_of({"p": 4}, {CITES: pairs}, device) as store:
        sampler = HgtSampler(store, {"p": [1, 1]})
        counts = np.zeros(2)
        for seed in range(2000):
            _, first, second = sampler.sample({"p": torch.tensor([0])}, seed).nodes["p"].tolist()
            assert first in (1, 2)
            counts[int(second == 3)] += 1
    # The other neighbour of the seed has 1/2, and node 3 has 1.
    assert_distributed(counts, np.array([0.25, 1.0]))


def test_hubs_give_to_fifty_neighbours(device: torch.device) -> None:
    pairs = [(u, 0) for u in range(1, 301)]
    with store_of({"p": 301}, {CITES: pairs}, device) as store:
        sampler = HgtSampler(store, {"p": [1000]})
        samples = [sampler.sample({"p": torch.tensor([0])}, seed) for seed in range(30)]
    assert {len(sample.nodes["p"]) for sample in samples} == {51}
    assert len({int(node) for sample in samples for node in sample.nodes["p"]}) > 290
    assert samples[0].num_sampled_edges[CITES] == [50]


def test_some_relations(device: torch.device) -> None:
    edges: Edges = {CITES: [(1, 0)], WRITES: [(0, 0)], READ_BY: [(2, 0)]}
    with store_of({"p": 3, "a": 1}, edges, device) as store:
        sampler = HgtSampler(store, {"p": [9, 9], "a": [9, 9]}, [WRITES])
        sample = sampler.sample({"p": torch.tensor([0])}, 0)
    assert sample.nodes["p"].tolist() == [0]
    assert sample.nodes["a"].tolist() == [0]
    assert list(sample.row) == list(sample.col) == [WRITES]


def test_errors() -> None:
    with store_of({"p": 3, "a": 1}, {CITES: [(1, 0)]}, torch.device("cpu")) as store:
        for numbers, error, text in (
            ({"b": [1]}, ValueError, "'b' is not one of"),
            ({"p": [1], "a": [1, 2]}, ValueError, "one length"),
            ({"p": [-1]}, ValueError, "num_samples"),
            ({"p": [1.5]}, TypeError, "num_samples"),
        ):
            with pytest.raises(error, match=text):
                HgtSampler(store, numbers)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="edge_types"):
            HgtSampler(store, {"p": [1]}, [WRITES])
        with pytest.raises(IndexError, match="out of range"):
            HgtSampler(store, {"p": [1]}).sample({"p": torch.tensor([3])}, 0)
