"""The same seed gives the same walks, PageRanks and negatives on every rank, with every plan."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory import Group
from peergraph.sampling import NegativeSampler, PinSageSampler, PprSampler, RandomWalker
from peergraph.store import GraphSource, Store
from peergraph.testing import run_ranks
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought by", "user")


def walks_and_samples(store: Store, source: GraphSource) -> list[torch.Tensor]:
    """Walks, neighbours and negatives of every kind; the same calls on any store of the graph."""
    if store.is_homogeneous:
        relation, path, both = store.edge_types[0], store.edge_types, {"p": 0.5, "q": 3.0}
    else:
        relation, path, both = BUYS, [BUYS, BOUGHT], {}
    start = torch.arange(source.num_nodes[relation[2]])
    walks = RandomWalker(store, path, edge_ids=True).walk(
        start, 7, 1, restart_prob=0.2, restart="end", dead_end="pad", **both
    )
    sample = PinSageSampler(
        store, path, num_walks=5, walk_length=2, num_neighbors=3, num_layers=2
    ).sample(start[:9], 2)
    results = [*walks, sample.nodes]
    for layer in sample.layers:
        results += [layer.row, layer.col, layer.visits]
    if store.is_homogeneous:
        results += PprSampler(store, num_neighbors=6).neighbors(start)
    for mode in ("binary", "triplet"):
        sampler = NegativeSampler(
            store, relation, mode=mode, amount=3, dst_weight="degree", avoid_edges=True
        )
        results += sampler.sample(torch.arange(source.num_nodes[relation[0]]), 3)
    return [result.cpu() for result in results]


def _same_everywhere(device: str) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        torch.manual_seed(0)
        source = make()
        with Store.build(source, plan="host", group=Group.current(device="cpu")) as plain:
            expected = walks_and_samples(plain, source)
        group = Group.current(device=device)
        for plan in PLANS:
            with build(source, plan, group=group, memory_budget=4000) as store:
                for mine, other in zip(walks_and_samples(store, source), expected, strict=True):
                    assert mine.dtype == other.dtype, plan
                    assert torch.equal(mine, other), plan


def test_same_on_two_ranks() -> None:
    run_ranks(_same_everywhere, 2, "cpu")


@pytest.mark.gpus(1)
def test_same_on_one_gpu() -> None:
    _same_everywhere("cuda")


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
def test_same_on_several_gpus(world_size: int) -> None:
    run_ranks(_same_everywhere, world_size, "cuda", device="cuda")
