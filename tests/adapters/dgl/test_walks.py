"""DGL's random walks, PinSAGE and uniform negatives on a ``StoreGraph``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph, random_hetero

# isort: split

import dgl
import torch
from dgl.sampling import (
    PinSAGESampler,
    RandomWalkNeighborSampler,
    global_uniform_negative_sampling,
    node2vec_random_walk,
    random_walk,
)

import peergraph_dgl
from tests.sampling.uniformity import assert_distributed

PATH = ["buys", "bought", "knows"]


def over_store(g: Any, device: torch.device) -> Any:
    return peergraph_dgl.from_store(peergraph_dgl.store_of(peergraph_dgl.share(g, device=device)))


def test_metapath(device: torch.device) -> None:
    """Each step is an edge of its type; walks end where there is none."""
    g = random_hetero()
    ours = over_store(g, device)
    starts = torch.arange(30).repeat(5)
    traces, ids, types = random_walk(ours, starts, metapath=PATH * 2, return_eids=True)
    assert types.tolist() == random_walk(g, starts, metapath=PATH * 2)[1].tolist()
    assert traces.shape == (150, 7)
    assert torch.equal(traces[:, 0], starts)
    for step, edge_type in enumerate(PATH * 2):
        going = traces[:, step + 1] >= 0
        source, destination = g.find_edges(ids[going, step], etype=edge_type)
        assert torch.equal(traces[going, step], source)
        assert torch.equal(traces[going, step + 1], destination)
        ended = traces[~going, step]
        stuck = ended[ended >= 0]
        assert bool((g.out_degrees(stuck, etype=edge_type) == 0).all())
        assert bool((ids[~going, step] == -1).all())


def test_distribution(device: torch.device) -> None:
    g = dgl.graph(([0, 0, 0, 1, 2], [1, 2, 2, 0, 3]), num_nodes=4)
    torch.manual_seed(0)
    traces, _ = random_walk(over_store(g, device), torch.zeros(3000, dtype=torch.long), length=2)
    ends = np.bincount(traces[:, 2], minlength=4)
    assert_distributed(ends[[0, 3]], np.array([1.0, 2.0]))
    assert ends.sum() == 3000


@pytest.mark.parametrize("restart", [0.4, torch.tensor([0, 0.4, 0.4, 0.4]), None], ids=str)
def test_restarts(restart: Any, device: torch.device) -> None:
    """A float ends walks before every step, a tensor before the steps that it names, as in DGL."""
    g = dgl.graph(([0], [0]))
    ours = over_store(g, device)
    torch.manual_seed(1)
    starts = torch.zeros(4000, dtype=torch.long)
    lengths = [
        np.bincount((random_walk(graph, starts, length=4, restart_prob=restart)[0] >= 0).sum(1))
        for graph in (ours, g)
    ]
    assert len(lengths[0]) == len(lengths[1])
    drawn = lengths[1] > 0
    assert (lengths[0][~drawn] == 0).all()
    if drawn.sum() > 1:
        p = 0.4
        first = [p] if isinstance(restart, float) else []
        steps = 4 if first else 3
        expected = np.array([p * (1 - p) ** i for i in range(steps)] + [(1 - p) ** steps])
        assert_distributed(lengths[0][drawn], expected)


def test_node2vec(device: torch.device) -> None:
    g = random_graph()
    traces, ids = node2vec_random_walk(
        over_store(g, device), torch.arange(60), 0.5, 2.0, 4, return_eids=True
    )
    going = traces[:, 1:] >= 0
    assert torch.equal(
        torch.stack([traces[:, :-1][going], traces[:, 1:][going]]),
        torch.stack(g.find_edges(ids[going])),
    )


@pytest.mark.parametrize("kind", ["pinsage", "metapath"])
def test_visited_neighbours(kind: str, device: torch.device) -> None:
    """As often as DGL's walks visit them."""
    g = random_hetero().edge_type_subgraph(["buys", "bought"])
    g = dgl.heterograph({t: g.edges(etype=t) for t in g.canonical_etypes},
                        {t: g.num_nodes(t) for t in g.ntypes})  # fmt: skip
    ours = over_store(g, device)
    visits = []
    torch.manual_seed(2)
    dgl.seed(2)
    for graph in (ours, g):
        if kind == "pinsage":
            sampler: Any = PinSAGESampler(graph, "user", "item", 2, 0.5, 4000, 50)
        else:
            sampler = RandomWalkNeighborSampler(
                graph, 2, 0.5, 4000, 50, metapath=["buys", "bought"]
            )
        neighbours = sampler(torch.tensor([3, 4]))
        assert neighbours.num_nodes() == 30
        source, destination = neighbours.edges()
        of_pair = np.zeros((2, 30))
        of_pair[destination - 3, source] = neighbours.edata["weights"]
        visits.append(of_pair)
    for ours_visits, others in zip(*visits, strict=True):
        often = others > 100
        assert (ours_visits[others == 0] < 20).all()
        ratio = ours_visits[often] / others[often]
        assert (abs(ratio - 1) < 0.35).all()
        assert abs(ours_visits.sum() / others.sum() - 1) < 0.05


def test_uniform_negatives(device: torch.device) -> None:
    g = random_graph()
    source, destination = global_uniform_negative_sampling(over_store(g, device), 100)
    assert len(source) == len(destination) > 0
    assert not bool(g.has_edges_between(source, destination).any())
    assert not bool((source == destination).any())


def test_errors(device: torch.device) -> None:
    ours = over_store(random_graph(), device)
    with pytest.raises(NotImplementedError, match="prob='w'"):
        random_walk(ours, [0], length=2, prob="w")
    with pytest.raises(NotImplementedError, match="restart_prob"):
        random_walk(ours, [0], length=3, restart_prob=torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match="walk length"):
        random_walk(ours, [0])
    with pytest.raises(dgl.DGLError, match="metapath"):
        random_walk(over_store(random_hetero(), device), [0], length=2)
