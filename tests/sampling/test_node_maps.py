"""Direct maps that samples leave as they are: each reads its own entries only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler, Sample, StaticShapeSampler
from peergraph.sampling.neighbor import workspace
from tests.pairwise import pairwise
from tests.sampling.plain_store import EDGE, NODE, PlainStore, csc_with_degrees, random_csc

NODES = 700
# 32: a word tells no samples apart. 31, 30: 2 and 4 samples. 1: hop after hop needs more.
BITS = [1, 24, 30, 31, 32]
# Of different sizes in turn, some of which need more bits than those before them.
BATCHES = [3, 1, 200, 0, 7, 600, 7, 7, 40, 1]


@pytest.fixture(params=BITS)
def bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(workspace, "LEAST_ENTRY_BITS", request.param)
    return int(request.param)


@pytest.fixture
def store(device: torch.device) -> PlainStore:
    rng = np.random.default_rng(3)
    return PlainStore.homogeneous(random_csc(rng, NODES, NODES, 9), device=device)


def batches(rounds: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Seeds, some of them given twice."""
    rng = np.random.default_rng(5)
    for i in range(rounds):
        yield i, torch.from_numpy(rng.integers(0, NODES, BATCHES[i % len(BATCHES)]))


def assert_same(got: Sample, want: Sample) -> None:
    for name in ("nodes", "row", "col", "edge_ids", "duplicate_counts"):
        mine, other = getattr(got, name), getattr(want, name)
        assert (mine is None) == (other is None)
        for kind in other or {}:
            assert torch.equal(mine[kind], other[kind]), (name, kind)
    assert got.num_sampled_nodes == want.num_sampled_nodes
    assert got.num_sampled_edges == want.num_sampled_edges


@pytest.mark.parametrize(
    ("bits", "options", "fanouts"),
    pairwise(
        BITS,
        [
            {"frontier": "new", "duplicate_counts": True},
            {"frontier": "all"},
            {"subgraph": "induced"},
            {"replace": True, "duplicate_counts": True},
        ],
        [[4, 3], [2, -1, 3]],
    ),
    indirect=["bits"],
)
def test_many_samples(
    store: PlainStore, bits: int, fanouts: list[int], options: dict[str, object]
) -> None:
    sampler = NeighborSampler(store, fanouts, **options)
    for i, seeds in batches(2 * len(BATCHES)):
        fresh = NeighborSampler(store, fanouts, **options)
        assert_same(sampler.sample(seeds, i), fresh.sample(seeds, i))
    assert sampler.workspaces.num_bytes == 4 * NODES


def test_numbers_of_samples_run_out(store: PlainStore) -> None:
    sampler = NeighborSampler(store, [2, 2])
    want = sampler.sample(torch.arange(9), 0)
    for i in range(300):  # 256 of them by the bits that are used
        sampler.sample(torch.arange(i % 5, NODES, 97), i)
    assert_same(sampler.sample(torch.arange(9), 0), want)


def test_after_failures(store: PlainStore, bits: int) -> None:
    sampler = NeighborSampler(store, [4, 3])
    for i, seeds in batches(len(BATCHES)):
        want = NeighborSampler(store, [4, 3]).sample(seeds, i)
        assert_same(sampler.sample(seeds, i), want)
        with pytest.raises(IndexError, match=rf"seeds\[{seeds.numel()}\] = {NODES} is out of"):
            sampler.sample(torch.cat([seeds, torch.tensor([NODES])]), i)
        assert_same(sampler.sample(seeds, i), want)


def test_several_types(device: torch.device, bits: int) -> None:
    """Two relations with the same sources in a hop, and a type that is never reached."""
    edges = {
        ("a", "to", "b"): csc_with_degrees([2, 3, 0, 4, 1]),
        ("a", "again", "b"): csc_with_degrees([1, 0, 4, 2, 5]),
        ("b", "to", "a"): csc_with_degrees([2, 0, 1, 5, 3, 2]),
        ("b", "to", "c"): csc_with_degrees([1], 1),
    }
    store = PlainStore({"a": 6, "b": 5, "c": 1}, edges, device=device)
    fanouts = {edge_type: [2, 3, 1] for edge_type in edges}
    sampler = NeighborSampler(store, fanouts)
    for i in range(12):
        seeds = {"b": torch.tensor([i % 5, 3, 3]), "a": torch.arange(i % 4)}
        assert_same(sampler.sample(seeds, i), NeighborSampler(store, fanouts).sample(seeds, i))


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_by_several_threads(bits: int, threads: int) -> None:
    """From some number of them on they claim the nodes' words at the same time."""
    rng = np.random.default_rng(8)
    store = PlainStore.homogeneous(random_csc(rng, 4000, 4000, 6), device="cpu")
    want = NeighborSampler(store, [3, 2], duplicate_counts=True)
    sampler = NeighborSampler(store, [3, 2], duplicate_counts=True)
    before = torch.get_num_threads()
    try:
        for i, count in enumerate([10, 4000, 3700, 50, 4000, 5]):
            seeds = torch.from_numpy(rng.integers(0, 4000, count))
            torch.set_num_threads(threads)
            got = sampler.sample(seeds, i)
            torch.set_num_threads(1)
            assert_same(got, want.sample(seeds, i))
    finally:
        torch.set_num_threads(before)


def test_streams(store: PlainStore, device: torch.device, bits: int) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU has no streams")
    sampler = NeighborSampler(store, [4, 3])
    streams = [torch.cuda.Stream(device) for _ in range(3)]
    samples = []
    for i, seeds in batches(30):
        with torch.cuda.stream(streams[i % 3]):
            samples.append((i, seeds, sampler.sample(seeds, i)))
    torch.cuda.synchronize(device)
    for i, seeds, got in samples:
        assert_same(got, NeighborSampler(store, [4, 3]).sample(seeds, i))


def test_beside_a_fixed_shape(store: PlainStore, bits: int) -> None:
    """Its maps are its own, and each of its samples leaves them empty."""
    sampler = NeighborSampler(store, [4, 3])
    fixed = StaticShapeSampler(sampler, 7)
    for i, _ in batches(6):
        seeds = torch.arange(i, i + 7)
        got = fixed.sample(seeds.to(store.device), i).compact()
        want = sampler.sample(seeds, i)
        assert torch.equal(got.nodes[NODE], want.nodes[NODE])
        assert torch.equal(got.row[EDGE], want.row[EDGE])
