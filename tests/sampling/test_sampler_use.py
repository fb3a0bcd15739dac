"""NeighborSampler: what it rejects, and where it may be used."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from peergraph.memory.device.launching import Buffers
from peergraph.sampling import NeighborSampler, Sample
from tests.sampling.cuda_streams import in_own_stream
from tests.sampling.plain_store import (
    EDGE,
    LAYOUTS,
    NODE,
    Layout,
    PlainStore,
    csc_with_degrees,
    random_csc,
)

BIPARTITE = {
    ("a", "to", "b"): csc_with_degrees([1], 3),
    ("b", "to", "a"): csc_with_degrees([2], 3),
}


@pytest.fixture
def store(device: torch.device) -> PlainStore:
    return PlainStore.homogeneous(csc_with_degrees([3, 1, 0, 2]), device=device)


@pytest.fixture
def bipartite(device: torch.device) -> PlainStore:
    return PlainStore({"a": 3, "b": 3}, BIPARTITE, device=device)


@pytest.mark.parametrize("bad", [[-2], [2, -7], [2**31]])
def test_fanout_out_of_range(store: PlainStore, bad: list[int]) -> None:
    with pytest.raises(ValueError, match=r"fanouts: expected -1 \(all\), 0 or more, got"):
        NeighborSampler(store, bad)


@pytest.mark.parametrize("bad", [[2.0], [True], [None], ["4"]])
def test_fanout_of_another_type(store: PlainStore, bad: list[object]) -> None:
    with pytest.raises(TypeError, match="fanouts: expected an integer, got"):
        NeighborSampler(store, bad)


def test_fanout_relations(bipartite: PlainStore) -> None:
    there, back = bipartite.edge_types
    with pytest.raises(ValueError, match=r"fanouts: no entry for relation \('b', 'to', 'a'\)"):
        NeighborSampler(bipartite, {there: [1]})
    with pytest.raises(ValueError, match=r"fanouts: \('a', 'x', 'b'\) is not one of"):
        NeighborSampler(bipartite, {there: [1], back: [1], ("a", "x", "b"): [1]})
    with pytest.raises(ValueError, match="fanouts: expected lists of the same length"):
        NeighborSampler(bipartite, {there: [1], back: [1, 1]})


def test_options(store: PlainStore) -> None:
    with pytest.raises(ValueError, match="frontier: expected 'new' or 'all', got 'old'"):
        NeighborSampler(store, [1], frontier="old")
    with pytest.raises(ValueError, match="index_dtype: expected"):
        NeighborSampler(store, [1], index_dtype=torch.int16)


@pytest.mark.parametrize(("position", "bad"), [(0, -1), (2, 4), (3, 2**40), (1, -(2**63))])
def test_seed_out_of_range(
    store: PlainStore, device: torch.device, position: int, bad: int
) -> None:
    sampler = NeighborSampler(store, [2, 2])
    seeds = torch.tensor([3, 0, 1, 2, 9])
    seeds[position] = bad
    message = rf"seeds\[{position}\] = {bad} is out of range for 4 nodes of type '_N'"
    for near in (seeds, seeds.to(device)):
        with pytest.raises(IndexError, match=message):
            sampler.sample(near, 1)
    assert sampler.sample(seeds[:0], 1).nodes[NODE].numel() == 0


def test_seed_out_of_range_without_hops(store: PlainStore) -> None:
    with pytest.raises(IndexError, match=r"seeds\[0\] = 4"):
        NeighborSampler(store, []).sample(torch.tensor([4]), 1)


def test_seed_of_a_type_without_nodes(device: torch.device) -> None:
    empty = {("a", "to", "b"): csc_with_degrees([0, 0], 2)}
    store = PlainStore({"a": 0, "b": 2}, empty, device=device)
    sampler = NeighborSampler(store, [2])
    assert sampler.sample({"b": torch.tensor([1])}, 0).num_sampled_nodes == {
        "a": [0, 0],
        "b": [1, 0],
    }
    with pytest.raises(IndexError, match=r"seeds\[0\] = 0 is out of range for 0 nodes of type 'a'"):
        sampler.sample({"b": torch.tensor([1]), "a": torch.tensor([0])}, 0)


def test_seeds_of_another_kind(store: PlainStore, bipartite: PlainStore) -> None:
    sampler = NeighborSampler(store, [2])
    for bad in (torch.ones(4, dtype=torch.bool), torch.rand(2), {NODE: [1, 2]}):
        with pytest.raises(TypeError, match="seeds: expected an int32 or int64 tensor, got"):
            sampler.sample(bad, 1)
    with pytest.raises(TypeError, match="seeds: expected a tensor or a dict"):
        sampler.sample([1, 2], 1)
    with pytest.raises(ValueError, match="seeds: expected one dimension"):
        sampler.sample(torch.zeros(2, 2, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="seeds: 'x' is not one of"):
        sampler.sample({"x": torch.zeros(2, dtype=torch.int64)}, 1)
    with pytest.raises(ValueError, match="seeds: expected a dict by node type"):
        NeighborSampler(bipartite, [1]).sample(torch.zeros(1, dtype=torch.int64), 1)


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_random_seed_out_of_range(store: PlainStore, bad: int) -> None:
    with pytest.raises(ValueError, match=r"seed: expected 0 .. 2\*\*64 - 1"):
        NeighborSampler(store, [2]).sample(torch.tensor([0]), bad)


def test_random_seed_of_another_type(store: PlainStore) -> None:
    with pytest.raises(TypeError, match=r"seed: expected an integer, got 1\.5"):
        NeighborSampler(store, [2]).sample(torch.tensor([0]), 1.5)


def test_integers_of_numpy(store: PlainStore) -> None:
    sampler = NeighborSampler(store, np.array([2, -1]))
    assert sampler.fanouts == {EDGE: [2, -1]}
    assert sampler.sample(torch.tensor([3]), np.int64(7)).num_sampled_edges[EDGE][0] == 2


def test_blocks_of_relations(bipartite: PlainStore) -> None:
    sample = NeighborSampler(bipartite, [2, 2]).sample({"b": torch.tensor([0, 1])}, 4)
    with pytest.raises(ValueError, match="edge_type: one of"):
        sample.block(0)
    with pytest.raises(KeyError):
        sample.block(0, ("a", "x", "b"))
    with pytest.raises(IndexError, match=r"hop: 2 is not in 0\.\.1"):
        sample.block(2, ("a", "to", "b"))
    assert sample.num_hops == 2


def big_store(device: torch.device | str, layout: Layout = LAYOUTS["three tiers"]) -> PlainStore:
    rng = np.random.default_rng(8)
    return PlainStore.homogeneous(random_csc(rng, 3000, 3000, 12), layout=layout, device=device)


def assert_same(a: Sample, b: Sample) -> None:
    assert torch.equal(a.nodes[NODE].cpu(), b.nodes[NODE].cpu())
    assert torch.equal(a.row[EDGE].cpu(), b.row[EDGE].cpu())
    assert torch.equal(a.col[EDGE].cpu(), b.col[EDGE].cpu())
    assert torch.equal(a.edge_ids[EDGE].cpu(), b.edge_ids[EDGE].cpu())
    assert a.num_sampled_nodes == b.num_sampled_nodes


def test_placement_and_device_do_not_matter(device: torch.device) -> None:
    seeds = torch.arange(0, 3000, 3)
    want = NeighborSampler(big_store("cpu", LAYOUTS["single"]), [6, 5, 4]).sample(seeds, 11)
    for layout in LAYOUTS.values():
        assert_same(NeighborSampler(big_store(device, layout), [6, 5, 4]).sample(seeds, 11), want)


def test_number_of_threads_does_not_matter() -> None:
    sampler = NeighborSampler(big_store("cpu"), [6, 5, 4], duplicate_counts=True)
    seeds = torch.arange(3000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = sampler.sample(seeds, 12)
        torch.set_num_threads(5)
        got = sampler.sample(seeds, 12)
    finally:
        torch.set_num_threads(before)
    assert_same(got, want)
    assert torch.equal(got.duplicate_counts[NODE], want.duplicate_counts[NODE])


@pytest.mark.parametrize("disjoint", [False, True])
def test_several_threads_at_once(device: torch.device, disjoint: bool) -> None:
    sampler = NeighborSampler(big_store(device), [6, 5], disjoint=disjoint)

    def sample(k: int) -> Sample:
        seeds = torch.arange(k, 3000, 50)
        return in_own_stream(device, lambda: sampler.sample(seeds, k))

    want = [sample(k) for k in range(24)]
    with ThreadPoolExecutor(6) as pool:
        for got, expected in zip(pool.map(sample, range(24)), want, strict=True):
            assert_same(got, expected)


def test_streams_share_the_work_space(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU has no streams")
    sampler = NeighborSampler(big_store(device), [6, 5])
    want = sampler.sample(torch.arange(100), 1)
    before = torch.cuda.memory_allocated(device)
    streams = [torch.cuda.Stream(device) for _ in range(4)]
    for k in range(20):
        with torch.cuda.stream(streams[k % 4]):
            got = sampler.sample(torch.arange(100), 1)
        torch.cuda.synchronize(device)
        assert_same(got, want)
    del got
    assert torch.cuda.memory_allocated(device) - before < 3000 * 4


def test_failed_samples_leave_no_trace(device: torch.device) -> None:
    sampler = NeighborSampler(big_store(device), [6, 5])
    seeds = torch.arange(100)
    want = sampler.sample(seeds, 1)
    for _ in range(3):
        with pytest.raises(IndexError):
            sampler.sample(torch.tensor([5, 6, 3000]), 1)
        assert_same(sampler.sample(seeds, 1), want)


class PicklableStore(PlainStore):
    """Stands for a store's handle: another process makes the same graph again."""

    def __reduce__(self) -> tuple[object, ...]:
        return big_store, (str(self.device),)


def test_pickle(device: torch.device) -> None:
    store = big_store(device)
    store.__class__ = PicklableStore
    sampler = NeighborSampler(store, [6, 5], frontier="all", edge_ids=True, index_dtype=torch.int32)
    seeds = torch.arange(50)
    want = sampler.sample(seeds, 1)
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.fanouts == sampler.fanouts
    assert copy.num_hops == 2
    assert_same(copy.sample(seeds, 1), want)


def _sample_in_child(sampler: NeighborSampler, queue: multiprocessing.Queue) -> None:
    queue.put(sampler.sample(torch.arange(2000), 2).row[EDGE].numpy())


def test_forked_worker() -> None:
    sampler = NeighborSampler(big_store("cpu"), [6, 5])
    want = sampler.sample(torch.arange(2000), 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sample_in_child, args=(sampler, queue))
    child.start()
    try:
        got = queue.get(timeout=250)
    finally:
        child.join(10)
        child.kill()
    assert np.array_equal(got, want.row[EDGE].numpy())


@pytest.mark.parametrize("disjoint", [False, True])
def test_later_samples_allocate_once(
    bipartite: PlainStore, disjoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each allocation of a running sample waits for Python's lock."""
    sampler = NeighborSampler(bipartite, [2, 2, 2], disjoint=disjoint)
    seeds = {"a": torch.tensor([0, 1]), "b": torch.tensor([2])}
    first = sampler.sample(seeds, 3)

    def refuse(self: Buffers, num_bytes: int) -> int:
        raise AssertionError(f"{num_bytes} bytes of scratch memory were allocated")

    monkeypatch.setattr(Buffers, "__call__", refuse)
    again = sampler.sample(seeds, 3)
    for node_type, nodes in first.nodes.items():
        assert torch.equal(nodes, again.nodes[node_type])
    for edge_type, row in first.row.items():
        assert torch.equal(row, again.row[edge_type])
        for before, after in zip(first.indptr[edge_type], again.indptr[edge_type], strict=True):
            assert torch.equal(before, after)
