"""Sizes at the edge: hubs, huge fanouts and batches, nothing at all, more than 2^31 edges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import peergraph
from peergraph.sampling import NeighborSampler, RandomWalker, StaticShapeSampler
from tests.conftest import REQUIRED_GPUS
from tests.held_resources import check_no_growth, resident_bytes, resource_counts
from tests.named_case import named_case, named_cases
from tests.sampling.flat_store import FlatStore, assert_valid
from tests.sampling.plain_store import EDGE, NODE
from tests.sampling.static_shape_samples import assert_same_sample

MORE_THAN_31_BITS = 2**31 + 12_345


def on(device: torch.device, cpu: int, gpu: int) -> int:
    """A size that is quick on the device."""
    return gpu if device.type == "cuda" else cpu


def random_store(
    device: torch.device, num_nodes: int, mean_degree: int, seed: int = 0
) -> FlatStore:
    random = torch.Generator(device).manual_seed(seed)
    degrees = torch.randint(2 * mean_degree + 1, (num_nodes,), generator=random, device=device)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    indices = torch.randint(
        num_nodes, (int(indptr[-1]),), generator=random, device=device, dtype=torch.int32
    )
    return FlatStore(indptr, indices)


def hub_store(device: torch.device, degree: int) -> FlatStore:
    """Node 0 has every node as its neighbour once, in a mixed order; the others have node 0."""
    order = torch.arange(degree, device=device) * 7_368_787 % degree  # coprime
    indices = torch.cat([order, order.new_zeros(degree - 1)]).int()
    indptr = torch.cat([order.new_zeros(1), torch.arange(degree, 2 * degree, device=device)])
    return FlatStore(indptr, indices)


@named_cases("fanout", [10, 1000, -1])
@named_cases("disjoint", [False, True])
def test_hub(device: torch.device, fanout: int, disjoint: bool) -> None:
    store = hub_store(device, on(device, 200_000, 10_000_000))
    sampler = NeighborSampler(store, [fanout, 2], disjoint=disjoint)
    seeds = torch.tensor([5, 0, 7], device=device)
    sample = sampler.sample(seeds, 1)
    hub_edges = store.num_nodes() if fanout < 0 else fanout
    assert sample.num_sampled_edges[EDGE][0] == hub_edges + 2
    if not disjoint:
        assert_valid(store, seeds, sample, [fanout, 2])
    near = FlatStore(store.indptr.cpu(), store.indices.cpu())
    want = NeighborSampler(near, [fanout, 2], disjoint=disjoint).sample(seeds.cpu(), 1)
    assert torch.equal(sample.nodes[NODE].cpu(), want.nodes[NODE])
    assert torch.equal(sample.row[EDGE].cpu(), want.row[EDGE])


@pytest.mark.parametrize("replace", [False, True])
def test_hub_with_weights(device: torch.device, replace: bool) -> None:
    store = hub_store(device, on(device, 100_000, 10_000_000))
    weights = torch.zeros(store.num_edges(), device=device)
    heavy = torch.arange(0, store.num_nodes(), 997, device=device)
    weights[heavy] = 1.0
    store.add_edge_table("w", weights)
    sampler = NeighborSampler(store, [100], weights="w", replace=replace)
    sample = sampler.sample(torch.zeros(1, dtype=torch.int64), 3)
    edges = sample.edge_ids[EDGE]
    assert edges.numel() == 100
    assert bool(torch.isin(edges, heavy).all())
    assert replace or edges.unique().numel() == 100


@pytest.mark.parametrize("replace", [False, True])
def test_fanout_of_a_thousand(device: torch.device, replace: bool) -> None:
    store = random_store(device, on(device, 3_000, 100_000), 1000)
    sampler = NeighborSampler(store, [1000, 3], replace=replace)
    seeds = torch.arange(on(device, 64, 1024), device=device)
    assert_valid(store, seeds, sampler.sample(seeds, 2), [1000, 3], replace=replace)


def test_a_million_seeds(device: torch.device) -> None:
    store = random_store(device, on(device, 60_000, 2_000_000), 12)
    seeds = torch.randint(store.num_nodes(), (on(device, 30_000, 1_000_000),), device=device)
    for fanouts in ([5], [10, 2]):
        sampler = NeighborSampler(store, fanouts)
        assert_valid(store, seeds, sampler.sample(seeds, 3), fanouts)


def test_batch_sizes_that_change(device: torch.device) -> None:
    store = random_store(device, 5_000, 8)
    sampler = NeighborSampler(store, [4, 3])
    for i, size in enumerate([1024, 0, 1, 77, 4096, 3, 0, 0, 2000]):
        seeds = torch.randint(5_000, (size,), device=device)
        assert_valid(store, seeds, sampler.sample(seeds, i), [4, 3])


@pytest.mark.parametrize("num_nodes", [0, 5])
def test_no_edges(device: torch.device, num_nodes: int) -> None:
    for options in ({}, {"disjoint": True}, {"subgraph": "induced"}):
        with named_case(options):
            none = torch.zeros(0, dtype=torch.int32, device=device)
            store = FlatStore(torch.zeros(num_nodes + 1, dtype=torch.int64), none)
            for fanouts in ([3, -1], []):
                sampler = NeighborSampler(store, fanouts, **options)
                for seeds in (torch.arange(num_nodes), torch.arange(0)):
                    sample = sampler.sample(seeds, 0)
                    assert sample.nodes[NODE].tolist() == seeds.tolist()
                    assert sample.row[EDGE].numel() == 0


def need_memory(device: torch.device, num_bytes: int) -> None:
    """Skips where a GPU has too little memory; not if it has enough that others hold."""
    free, total = torch.cuda.mem_get_info(device)
    if free >= num_bytes:
        return
    reason = f"needs {num_bytes >> 30} GiB of GPU memory, {free >> 30} of {total >> 30} are free"
    if REQUIRED_GPUS and total >= num_bytes:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def many_indices(device: torch.device) -> torch.Tensor:
    """More than 2^31 neighbours. On a GPU, that of edge e is e * 1_000_003 % 65536; on the CPU all
    are node 0, in memory that was never written and takes none.
    """
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(MORE_THAN_31_BITS, np.int32))
    need_memory(device, 14 << 30)
    indices = torch.empty(MORE_THAN_31_BITS, dtype=torch.int32, device=device)
    step = 1 << 26
    for begin in range(0, MORE_THAN_31_BITS, step):
        end = min(begin + step, MORE_THAN_31_BITS)
        indices[begin:end] = torch.arange(begin, end, device=device) * 1_000_003 % 65536
    return indices


def many_edges(indices: torch.Tensor, hub: bool) -> FlatStore:
    """65536 nodes of like degrees, or one with nearly all edges in front of the others."""
    edges, device = indices.numel(), indices.device
    if hub:
        rest = torch.arange(65536, device=device) + (edges - 65535)
        return FlatStore(torch.cat([rest.new_zeros(1), rest]), indices)
    return FlatStore(torch.linspace(0, edges, 65537, dtype=torch.float64).long(), indices)


@pytest.mark.parametrize("hub", [False, True])
def test_more_than_2_to_the_31_edges(many_indices: torch.Tensor, hub: bool) -> None:
    store, device = many_edges(many_indices, hub), many_indices.device
    seeds = torch.tensor([0, 65535, 40_000, 1], device=device)
    for fanouts in ([10, 3], [1000], [3000]):
        for replace in (False, True):
            sampler = NeighborSampler(store, fanouts, replace=replace)
            sample = sampler.sample(seeds, 4)
            assert_valid(store, seeds, sample, fanouts, replace=replace)
            if device.type == "cuda":
                assert int(sample.edge_ids[EDGE].max()) >= 2**31 - 40_000
    fixed = StaticShapeSampler(NeighborSampler(store, [10, 3]), 4)
    got = fixed.sample(seeds, 4)
    peergraph.synchronize(device)
    want = NeighborSampler(store, [10, 3]).sample(seeds, 4)
    assert torch.equal(got.compact().edge_ids[EDGE], want.edge_ids[EDGE])


@pytest.mark.parametrize("hub", [False, True])
def test_walks_over_more_than_2_to_the_31_edges(many_indices: torch.Tensor, hub: bool) -> None:
    store = many_edges(many_indices, hub)
    walks = RandomWalker(store, edge_ids=True).walk(torch.arange(65536), 4, 5)
    edges = walks.edge_ids
    is_step = edges >= 0
    assert int(edges.max()) > 2**31 - 70_000
    assert torch.equal(store.indices[edges[is_step]].long(), walks.nodes[:, 1:][is_step])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"duplicate_counts": True},
        {"disjoint": True},
        {"replace": True, "disjoint": True},
        {"frontier": "all"},
        {"subgraph": "induced"},
    ],
    ids=str,
)
def test_batches_large_enough_for_several_threads(options: dict[str, object]) -> None:
    """Each step by one thread, and by several; every step of the second is cut into pieces."""
    store = random_store(torch.device("cpu"), 4_000, 6)
    sampler = NeighborSampler(store, [3, -1], **options)
    seeds = torch.randint(4_000, (3_000,), generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    try:
        results = []
        for number in range(1, 7):
            torch.set_num_threads(number)
            results.append(sampler.sample(seeds, 9))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert_same_sample(other, results[0])


def test_eight_samplers_at_once(device: torch.device) -> None:
    """On one store, each in a thread (and on a stream) of its own."""
    store = random_store(device, on(device, 5_000, 500_000), 20)
    kinds = [{}, {"disjoint": True}, {"replace": True}, {"subgraph": "induced"}] * 2
    samplers = [NeighborSampler(store, [6, 4], **kind) for kind in kinds]
    batches = [torch.randint(store.num_nodes(), (200,), device=device) for _ in range(12)]

    def work(sampler: NeighborSampler) -> list[list[int]]:
        if device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(device))
        samples = [sampler.sample(seeds, i) for i, seeds in enumerate(batches)]
        return [[*s.nodes[NODE].tolist(), *s.row[EDGE].tolist()] for s in samples]

    torch.zeros(1, device=device).sum().item()  # the batches are there
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, samplers))
    with ThreadPoolExecutor(1) as pool:
        assert results == list(pool.map(work, samplers))


def held_by(device: torch.device) -> dict[str, int]:
    """What the process holds, tasks of the kernel and memory of the device included."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    tasks = len(list(Path("/proc/self/task").iterdir()))
    allocated = torch.cuda.memory_allocated(device) if on_gpu else 0
    return resource_counts() | {"tasks": tasks, "allocated": allocated}


@pytest.mark.parametrize("kind", ["plain", "disjoint", "induced", "fixed"])
def test_thousands_of_batches_leak_nothing(device: torch.device, kind: str) -> None:
    store = random_store(device, 300, 5)
    options = {"disjoint": {"disjoint": True}, "induced": {"subgraph": "induced"}}.get(kind, {})
    sampler = NeighborSampler(store, [3, 2], **options)
    fixed = StaticShapeSampler(sampler, 8) if kind == "fixed" else None
    batches = [torch.randint(300, (8,), device=device) for _ in range(16)]

    def run(count: int) -> None:
        for i in range(count):
            (fixed or sampler).sample(batches[i % 16], i)

    run(500)
    before, memory = held_by(device), resident_bytes()
    reserved = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
    run(4_000)
    check_no_growth(before, lambda: held_by(device))
    assert resident_bytes() - memory < 8 << 20
    assert device.type == "cpu" or torch.cuda.memory_reserved(device) - reserved < 32 << 20
