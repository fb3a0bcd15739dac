"""The same seed gives the same sample on every rank, with every plan, on CPU and GPUs."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from peergraph.memory import Group
from peergraph.sampling import NeighborSampler, Sample
from peergraph.store import GraphSource, Store
from peergraph.testing import run_ranks
from tests.places import cpu_and_gpus
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source


def on_cpu(value: object) -> object:
    """Tensors within dictionaries and lists, moved to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {k: on_cpu(v) for k, v in value.items()}
    if isinstance(value, list):
        return [on_cpu(v) for v in value]
    return value


def assert_equal(mine: object, other: object, where: str) -> None:
    if isinstance(mine, torch.Tensor):
        assert isinstance(other, torch.Tensor), where
        assert mine.dtype == other.dtype, where
        assert torch.equal(mine, other), where
    elif isinstance(mine, dict):
        assert isinstance(other, dict), where
        assert mine.keys() == other.keys(), where
        for key in mine:
            assert_equal(mine[key], other[key], f"{where}[{key}]")
    elif isinstance(mine, list):
        assert isinstance(other, list), where
        assert len(mine) == len(other), where
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert_equal(a, b, f"{where}[{i}]")
    else:
        assert mine == other, where


def assert_same_sample(mine: Sample, other: Sample) -> None:
    for f in fields(Sample):
        assert_equal(on_cpu(getattr(mine, f.name)), on_cpu(getattr(other, f.name)), f.name)


def samples(store: Store, source: GraphSource) -> list[Sample]:
    """Samples with every kind of option; the same calls on any store of the graph."""
    generator = torch.Generator().manual_seed(3)
    seeds = {t: torch.randint(n, (9,), generator=generator) for t, n in source.num_nodes.items()}
    results = []
    for fanouts in ([3, 2], [-1, 4, 1], [40, 2]):
        for options in (
            {},
            {"frontier": "all"},
            {"disjoint": True, "edge_ids": False},
            {"duplicate_counts": True, "index_dtype": torch.int32},
            {"replace": True},
            {"weights": "w"},
            {"weights": "w", "replace": True, "frontier": "all"},
            {"node_time": "t", "weights": "w"},
            {"node_time": "t", "temporal_strategy": "last"},
            {"edge_time": "t"},
            {"edge_time": "sorted", "time_window": 12, "temporal_strategy": "last"},
            {"edge_time": "sorted", "time_window": 12, "replace": True},
            {"subgraph": "induced"},
            {"subgraph": "induced", "disjoint": True},
        ):
            sampler = NeighborSampler(store, fanouts, **options)  # type: ignore[arg-type]
            times = {t: s % 50 for t, s in seeds.items()} if "edge_time" in options else None
            results += [sampler.sample(seeds, seed, seed_time=times) for seed in (0, 2**40 + 7)]
    return results


def add_columns(source: GraphSource) -> None:
    """Weights of edges, times of nodes and edges."""
    generator = torch.Generator().manual_seed(4)
    for node_type, count in source.num_nodes.items():
        times = torch.randint(50, (count,), generator=generator)
        source.node_tables.setdefault(node_type, {})["t"] = times
    for edge_type, edges in source.edges.items():
        assert edges.coo is not None
        tables = source.edge_tables.setdefault(edge_type, {})
        tables["w"] = torch.rand(edges.coo.shape[1], generator=generator)
        tables["t"] = torch.randint(50, (edges.coo.shape[1],), generator=generator).int()
        tables["sorted"] = tables["t"].sort().values  # lists are bisected


def assert_edges_of_the_graph(sample: Sample, source: GraphSource) -> None:
    """Every sampled edge is the user's edge of that id."""
    if sample.edge_ids is None:
        return
    for edge_type, edges in source.edges.items():
        assert edges.coo is not None
        sources = sample.nodes[edge_type[0]][sample.row[edge_type].long()]
        targets = sample.nodes[edge_type[2]][sample.col[edge_type].long()]
        ids = sample.edge_ids[edge_type]
        assert torch.equal(torch.stack([sources, targets]).cpu(), edges.coo[:, ids.cpu()])


def same_everywhere(plan: str, device: str) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        torch.manual_seed(0)
        source = make()
        add_columns(source)
        with Store.build(source, plan="host", group=Group.current(device="cpu")) as plain:
            expected = samples(plain, source)
        for sample in expected:
            assert_edges_of_the_graph(sample, source)
        group = Group.current(device=device)
        with build(source, plan, group=group, memory_budget=8000) as store:
            for mine, other in zip(samples(store, source), expected, strict=True):
                assert_same_sample(mine, other)


@pytest.mark.parametrize("plan", PLANS)
def test_same_on_two_ranks(plan: str) -> None:
    run_ranks(same_everywhere, 2, plan, "cpu")


@cpu_and_gpus(1)
@pytest.mark.parametrize("plan", PLANS)
def test_same_on_one_rank(device_type: str, plan: str) -> None:
    same_everywhere(plan, device_type)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
def test_same_on_several_gpus(plan: str, world_size: int) -> None:
    run_ranks(same_everywhere, world_size, plan, "cuda", device="cuda")
