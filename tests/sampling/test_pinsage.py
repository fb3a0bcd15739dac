"""PinSageSampler against its specification (peergraph.reference.walks)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from peergraph.reference import walks as reference
from peergraph.sampling import PinSageSample, PinSageSampler, RandomWalker
from tests.named_case import named_case, named_cases
from tests.sampling.cuda_streams import in_own_stream
from tests.sampling.plain_store import LAYOUTS, Layout, PlainStore, csc_with_degrees, random_csc
from tests.sampling.walk_graphs import BY, OF, RELATIONS, TAGS, TYPES, csc_of


def assert_equals_reference(
    store: PlainStore, edge_type: object, seeds: torch.Tensor, seed: int, **options
) -> PinSageSample:
    sampler = PinSageSampler(store, edge_type, **options)
    got = sampler.sample(seeds, seed)
    nodes, layers = reference.pinsage(
        store.relations, sampler.walker.metapath, seeds.tolist(), seed, **options
    )
    assert got.nodes.dtype == torch.int64
    assert got.nodes.tolist() == nodes
    assert len(got.layers) == len(layers)
    for layer, want in zip(got.layers, layers, strict=True):
        assert layer.row.dtype == layer.col.dtype == torch.int64
        assert layer.visits.dtype == torch.int32
        assert layer.row.tolist() == want.row
        assert layer.col.tolist() == want.col
        assert layer.visits.tolist() == want.visits
        assert layer.num_targets == want.num_targets
        assert layer.num_sources == want.num_sources
    return got


@named_cases("layout", LAYOUTS.values())
@named_cases("index_dtype", [torch.int32, torch.int64])
def test_homogeneous(device: torch.device, layout: Layout, index_dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    csc = random_csc(rng, 70, 70, 5)
    store = PlainStore.homogeneous(csc, layout=layout, index_dtype=index_dtype, device=device)
    seeds = torch.from_numpy(rng.integers(0, 70, 11)).to(index_dtype)
    options = {"num_walks": 4, "walk_length": 3, "num_neighbors": 5}
    assert_equals_reference(store, None, seeds, 5, num_layers=2, **options)
    assert_equals_reference(store, None, seeds, 6, restart_prob=0.5, **options)


@pytest.mark.parametrize("layout", ["single", "three tiers"])
def test_bipartite(device: torch.device, layout: str) -> None:
    store = PlainStore(TYPES, RELATIONS, layout=LAYOUTS[layout], device=device)
    seeds = torch.tensor([5, 5, 39, 0, 17])
    for metapath in ([BY, OF], [OF, BY]):
        assert_equals_reference(
            store,
            metapath,
            seeds,
            2**64 - 1,
            num_walks=7,
            walk_length=2,
            num_neighbors=3,
            restart_prob=0.3,
            num_layers=3,
        )


@named_cases(
    ("num_walks", "walk_length", "num_neighbors"),
    [(1, 1, 1), (1, 1, 9), (9, 1, 2), (100, 5, 600), (40, 30, 10), (1500, 2, 50)],
)
def test_sizes(device: torch.device, num_walks: int, walk_length: int, num_neighbors: int) -> None:
    # From one lane's worth of visits to more than fit into a block's shared memory.
    csc = random_csc(np.random.default_rng(2), 300, 300, 12)
    store = PlainStore.homogeneous(csc, device=device)
    assert_equals_reference(
        store,
        None,
        torch.tensor([3, 250, 3]),
        8,
        num_walks=num_walks,
        walk_length=walk_length,
        num_neighbors=num_neighbors,
    )


def test_counts_are_those_of_the_walks(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(3), 40, 40, 6)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    seeds = torch.arange(40)
    sampler = PinSageSampler(store, num_walks=10, walk_length=2, num_neighbors=20)
    sample = sampler.sample(seeds, 4)
    (layer,) = sample.layers
    walks = RandomWalker(store).walk(seeds.repeat_interleave(10), 2, 4, dead_end="pad")
    visited = walks.nodes[:, 1:].reshape(40, 20).cpu().numpy()
    for target in range(40):
        mine = layer.col == target
        nodes, counts = np.unique(visited[target][visited[target] >= 0], return_counts=True)
        got = dict(
            zip(sample.nodes[layer.row[mine]].tolist(), layer.visits[mine].tolist(), strict=True)
        )
        assert got == dict(zip(nodes.tolist(), counts.tolist(), strict=True))
        falling = layer.visits[mine].tolist()
        assert falling == sorted(falling, reverse=True)
        if falling:
            assert float(layer.weights[mine].sum()) == pytest.approx(1)


def test_several_streams_at_once(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(4), 500, 500, 6)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    sampler = PinSageSampler(store, num_walks=4, walk_length=2, num_neighbors=3, num_layers=2)

    def sample(k: int) -> PinSageSample:
        seeds = torch.arange(k, 500, 50)
        return in_own_stream(device, lambda: sampler.sample(seeds, k))

    want = [sample(k) for k in range(16)]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(sample, range(16)), want, strict=True):
            assert torch.equal(one.nodes, other.nodes)
            for mine, theirs in zip(one.layers, other.layers, strict=True):
                assert torch.equal(mine.row, theirs.row)
                assert torch.equal(mine.col, theirs.col)


def test_empty(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[], [0], [1]]), device=device)
    options = {"num_walks": 2, "walk_length": 2, "num_neighbors": 2, "num_layers": 2}
    none = torch.empty(0, dtype=torch.int64)
    got = assert_equals_reference(store, None, none, 0, **options)
    assert got.layers[0].weights.shape == (0,)
    got = assert_equals_reference(store, None, torch.tensor([0, 0]), 0, **options)
    assert got.layers[1].row.numel() == 0
    assert_equals_reference(store, None, torch.tensor([2, 0]), 0, **options)
    assert PinSageSampler(store, **options | {"num_layers": 0}).sample(none, 0).layers == []


BAD_OPTIONS = [
    ({"num_walks": 0}, ValueError, "num_walks: expected 1 .. "),
    ({"num_walks": 1.5}, TypeError, "num_walks: expected an integer"),
    ({"walk_length": 0}, ValueError, "walk_length: expected 1 .. "),
    ({"num_neighbors": 0}, ValueError, "num_neighbors: expected 1 .. "),
    ({"num_layers": -1}, ValueError, "num_layers: expected 0 .. "),
    ({"num_layers": 2**20}, ValueError, "num_layers: expected 0 .. "),
    ({"restart_prob": -0.5}, ValueError, "restart_prob: expected 0 .. 1, got -0.5"),
    ({"num_walks": 2**30, "walk_length": 2}, ValueError, r"num_walks \* walk_length: expected"),
    ({"num_layers": 4, "walk_length": 2**29}, ValueError, "num_layers . steps of a walk"),
]


def test_bad_options(device: torch.device) -> None:
    for bad, error, message in BAD_OPTIONS:
        with named_case(bad):
            store = PlainStore.homogeneous(csc_with_degrees([3, 1, 0, 2]), device=device)
            options = {"num_walks": 2, "walk_length": 2, "num_neighbors": 2} | bad
            with pytest.raises(error, match=message):
                PinSageSampler(store, **options)


def test_bad_seeds_and_metapath(device: torch.device) -> None:
    store = PlainStore(TYPES, RELATIONS, device=device)
    options = {"num_walks": 2, "walk_length": 2, "num_neighbors": 2}
    with pytest.raises(ValueError, match="edge_type: starts at 'user' and ends at 'tag'"):
        PinSageSampler(store, [OF, TAGS], **options)
    sampler = PinSageSampler(store, [BY, OF], **options)
    for near in (torch.tensor([1, 40]), torch.tensor([1, 40], device=device)):
        with pytest.raises(IndexError, match=r"seeds\[1\] = 40 is out of range for 40 nodes of"):
            sampler.sample(near, 0)
    with pytest.raises(TypeError, match="seeds: expected an int32 or int64 tensor"):
        sampler.sample(torch.ones(3), 0)
    with pytest.raises(ValueError, match="seed: expected 0 .. "):
        sampler.sample(torch.tensor([1]), 2**64)
