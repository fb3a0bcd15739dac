"""RandomWalker against its specification (peergraph.reference.walks), and its chances."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
import torch

from peergraph.reference import walks as reference
from peergraph.sampling import NegativeSampler, PinSageSampler, RandomWalker
from peergraph.store import EdgeSource, GraphSource, Store
from tests.named_case import named_case, named_cases
from tests.sampling.plain_store import (
    EDGE,
    INDEX_DTYPES,
    LAYOUTS,
    NODE,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.walk_graphs import (
    BY,
    OF,
    RELATIONS,
    TAGS,
    TYPES,
    assert_chances,
    csc_of,
)


def assert_equals_reference(
    store: PlainStore, walker: RandomWalker, start: torch.Tensor, length: int, seed: int, **options
) -> None:
    got = walker.walk(start, length, seed, **options)
    nodes, edge_ids = reference.walk(
        store.relations, walker.metapath, start.tolist(), length, seed, **options
    )
    assert got.nodes.dtype == torch.int64
    assert got.nodes.shape == (start.numel(), length + 1)
    assert got.nodes.device.type == store.device.type
    assert got.nodes.tolist() == nodes
    if walker.edge_ids:
        assert got.edge_ids.tolist() == edge_ids
    else:
        assert got.edge_ids is None


@named_cases(
    "options",
    [
        {},
        {"dead_end": "pad"},
        {"restart_prob": 0.3},
        {"restart_prob": 0.3, "restart": "end", "dead_end": "pad"},
        {"p": 0.25, "q": 4.0, "restart_prob": 0.1},
        {"p": 3.0, "q": 0.5, "dead_end": "pad"},
        {"p": 50.0},
    ],
)
def test_one_relation(device: torch.device, options: dict) -> None:
    for (name, layout), index_dtype in product(LAYOUTS.items(), INDEX_DTYPES):
        with named_case(name, index_dtype):
            rng = np.random.default_rng(1)
            csc = random_csc(rng, 80, 80, 6)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            walker = RandomWalker(store, edge_ids=True)
            start = torch.from_numpy(rng.integers(0, 80, 37)).to(index_dtype)
            assert_equals_reference(store, walker, start, 9, 5, **options)


@named_cases("metapath", [[BY, OF], [OF, BY], [OF, TAGS], [BY], TAGS])
def test_metapath(device: torch.device, metapath: list) -> None:
    for layout in ("single", "three tiers"):
        with named_case(layout):
            store = PlainStore(TYPES, RELATIONS, layout=LAYOUTS[layout], device=device)
            walker = RandomWalker(store, metapath, edge_ids=True)
            start = torch.arange(TYPES[walker.metapath[0][2]])
            length = 7 if walker.metapath[-1][0] == walker.metapath[0][2] else len(walker.metapath)
            options = {"dead_end": "pad", "restart": "end", "restart_prob": 0.1}
            assert_equals_reference(store, walker, start, length, 3, **options)


def test_several_relations_of_one_node_type(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    a, b = ("n", "a", "n"), ("n", "b", "n")
    relations = {a: random_csc(rng, 30, 30, 4), b: random_csc(rng, 30, 30, 4)}
    store = PlainStore({"n": 30}, relations, layout=LAYOUTS["sharded"], device=device)
    for metapath in ([a, b], [b, a, a], a):
        walker = RandomWalker(store, metapath)
        assert_equals_reference(store, walker, torch.arange(30), 8, 2**64 - 1)


def test_every_step_is_an_edge(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(5), 100, 100, 5)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["renumbered"], device=device)
    got = RandomWalker(store, edge_ids=True).walk(torch.arange(100), 12, 1, q=0.5, dead_end="pad")
    nodes, edges = got.nodes.cpu().numpy(), got.edge_ids.cpu().numpy()
    destinations = np.repeat(np.arange(100), np.diff(csc.indptr))
    by_id = np.argsort(csc.edge_ids)
    is_step = edges >= 0
    assert is_step.any()
    assert np.array_equal(csc.indices[by_id][edges[is_step]], nodes[:, 1:][is_step])
    assert np.array_equal(destinations[by_id][edges[is_step]], nodes[:, :-1][is_step])
    assert (nodes[:, 1:][~is_step] == -1).all()


def test_isolated_nodes_and_starts_given_twice(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[], [0], [1, 0]]), device=device)
    walker = RandomWalker(store)
    start = torch.tensor([0, 1, 2, 2, 2, 2])
    assert walker.walk(start[:2], 3, 0).nodes.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    padded = walker.walk(start[:2], 3, 0, dead_end="pad").nodes.tolist()
    assert padded == [[0, -1, -1, -1], [1, 0, -1, -1]]
    assert len(set(walker.walk(start, 2, 1).nodes[2:, 1].tolist())) == 2
    assert_equals_reference(store, walker, start, 5, 7)


def test_nothing_to_walk(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_with_degrees([3, 1, 0]), device=device)
    walker = RandomWalker(store, edge_ids=True)
    got = walker.walk(torch.empty(0, dtype=torch.int64), 4, 0)
    assert got.nodes.shape == (0, 5)
    assert got.edge_ids.shape == (0, 4)
    got = walker.walk(torch.tensor([2, 0]), 0, 0)
    assert got.nodes.tolist() == [[2], [0]]
    assert got.edge_ids.shape == (2, 0)
    empty = PlainStore.homogeneous(csc_with_degrees([], 3), device=device)
    assert_equals_reference(empty, RandomWalker(empty), torch.arange(3), 2, 0)


def test_starts_on_the_device(device: torch.device) -> None:
    csc = random_csc(np.random.default_rng(6), 50, 50, 5)
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["host"], device=device)
    start = torch.arange(50, device=device)
    assert_equals_reference(store, RandomWalker(store), start, 6, 0)
    with pytest.raises(IndexError, match=r"start\[1\] = 50 is out of range for 50 nodes of type"):
        RandomWalker(store).walk(torch.tensor([4, 50, -1], device=device), 2, 0)


def test_long_lists(device: torch.device) -> None:
    # Lists longer than what one round of a search reads.
    rng = np.random.default_rng(7)
    lists = [rng.integers(0, 12, n).tolist() for n in (300, 129, 128, 33, 32, 31, 1, 0, 500)]
    store = PlainStore.homogeneous(csc_of([*lists, [0], [1], [8]]), device=device)
    walker = RandomWalker(store)
    for index, (p, q) in enumerate([(0.1, 9.0), (9.0, 0.1), (1.0, 5.0), (1.0, 0.2)]):
        assert_equals_reference(store, walker, torch.arange(12), 20, index, p=p, q=q)


def test_number_of_threads_does_not_matter() -> None:
    store = PlainStore.homogeneous(random_csc(np.random.default_rng(8), 2000, 2000, 6))
    walker, start = RandomWalker(store, edge_ids=True), torch.arange(2000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = walker.walk(start, 5, 12, q=3.0)
        torch.set_num_threads(5)
        got = walker.walk(start, 5, 12, q=3.0)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got.nodes, want.nodes)
    assert torch.equal(got.edge_ids, want.edge_ids)


def test_pickle(device: torch.device) -> None:
    edge_index = torch.stack([torch.arange(100), torch.arange(100) // 3])
    source = GraphSource({NODE: 100}, {EDGE: EdgeSource(coo=edge_index)}, {}, {})
    with Store.build(source, plan="sharded", device=device) as store:
        start = torch.arange(50)
        for sampler, call in (
            (RandomWalker(store), lambda s: s.walk(start, 4, 1).nodes),
            (
                PinSageSampler(store, num_walks=3, walk_length=2, num_neighbors=2),
                lambda s: s.sample(start, 1).nodes,
            ),
            (
                NegativeSampler(store, dst_weight="degree", avoid_edges=True),
                lambda s: torch.stack(s.sample(start, 1)[:2]),
            ),
        ):
            want = call(sampler)
            assert torch.equal(call(pickle.loads(pickle.dumps(sampler))), want)


def test_uniform_steps(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[1, 2, 3, 3, 4], [0], [0], [0], [0]]), device=device)
    start = torch.zeros(20_000, dtype=torch.int64)
    nodes = RandomWalker(store).walk(start, 3, 1).nodes.cpu().numpy()
    for step in (1, 3):
        assert_chances(nodes[:, step], {1: 1, 2: 1, 3: 2, 4: 1})


@named_cases(("p", "q"), [(0.25, 4.0), (4.0, 0.25), (2.0, 2.0), (1.0, 8.0), (8.0, 1.0)])
def test_node2vec_steps(device: torch.device, p: float, q: float) -> None:
    # From 0 to 1, whose neighbours are 0, 2 (also one of 0's), and 3, 4 (not).
    csc = csc_of([[1, 2, 1], [0, 2, 3, 4, 2], [1], [1], [1]])
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    start = torch.zeros(20_000, dtype=torch.int64)
    nodes = RandomWalker(store).walk(start, 2, 1, p=p, q=q).nodes.cpu().numpy()
    assert_chances(nodes[:, 1], {1: 2, 2: 1})
    third = nodes[nodes[:, 1] == 1, 2]
    assert_chances(third, {0: 1 / p, 2: 2.0, 3: 1 / q, 4: 1 / q})


def test_second_order_steps_end(device: torch.device) -> None:
    # Hardly any candidate is ever accepted: the bound on tries takes effect.
    store = PlainStore.homogeneous(csc_of([[1, 1, 1], [0, 0, 0]]), device=device)
    walker = RandomWalker(store)
    assert_equals_reference(store, walker, torch.tensor([0, 1]), 2, 3, p=1e12)
    far = walker.walk(torch.zeros(600, dtype=torch.int64), 2, 3, p=1e300).nodes
    assert far.tolist() == [[0, 1, 0]] * 600


def test_restarts(device: torch.device) -> None:
    ring = csc_of([[(i + 1) % 50] for i in range(50)])
    store = PlainStore.homogeneous(ring, device=device)
    walker = RandomWalker(store)
    start = torch.full((4000,), 7)
    nodes = walker.walk(start, 6, 1, restart_prob=0.2).nodes.cpu().numpy()
    assert (nodes[:, 1] == 8).all()
    for step in range(1, 6):
        assert_chances(nodes[:, step + 1] == 7, {True: 0.2, False: 0.8})
    nodes = walker.walk(start, 6, 2, restart_prob=0.2, restart="end", dead_end="pad").nodes
    lengths = (nodes >= 0).sum(1).cpu().numpy() - 1
    assert_chances(lengths, {n: 0.2 * 0.8 ** (n - 1) for n in range(1, 6)} | {6: 0.8**5})
    nodes = walker.walk(start[:3], 4, 3, restart_prob=1.0).nodes
    assert nodes.tolist() == [[7, 8, 7, 7, 7]] * 3


def test_bad_arguments(device: torch.device) -> None:
    store = PlainStore(TYPES, RELATIONS, device=device)
    with pytest.raises(ValueError, match="edge_type: one of .* is needed"):
        RandomWalker(store)
    with pytest.raises(ValueError, match=r"edge_type: \('a', 'b', 'c'\) is not one of"):
        RandomWalker(store, ("a", "b", "c"))
    with pytest.raises(ValueError, match="edge_type: expected at least one relation"):
        RandomWalker(store, [])
    with pytest.raises(ValueError, match="leads to 'user', but .* starts at 'item'"):
        RandomWalker(store, [BY, TAGS])
    start = torch.zeros(2, dtype=torch.int64)
    walker = RandomWalker(store, [OF, TAGS])
    with pytest.raises(ValueError, match="length: the metapath ends after 2 steps at 'tag'"):
        walker.walk(start, 3, 0, dead_end="pad")
    with pytest.raises(ValueError, match="dead_end: 'stay' needs nodes of one type"):
        walker.walk(start, 2, 0)
    with pytest.raises(ValueError, match="restart: 'jump' needs a single relation"):
        walker.walk(start, 2, 0, dead_end="pad", restart_prob=0.5)
    with pytest.raises(NotImplementedError, match="p, q: not supported along a metapath"):
        walker.walk(start, 2, 0, dead_end="pad", p=2.0)


BAD_WALKS = [
    ({"start": torch.zeros(2)}, TypeError, "start: expected an int32 or int64 tensor, got"),
    ({"start": [1]}, TypeError, "start: expected an int32 or int64 tensor, got"),
    ({"start": torch.zeros(1, 1, dtype=torch.int64)}, ValueError, "start: expected one dim"),
    ({"start": torch.tensor([0, 4])}, IndexError, r"start\[1\] = 4 is out of range for 4"),
    ({"start": torch.tensor([-1])}, IndexError, r"start\[0\] = -1 is out of range"),
    ({"length": -1}, ValueError, "length: expected 0 .. "),
    ({"length": 2.0}, TypeError, "length: expected an integer"),
    ({"seed": -1}, ValueError, "seed: expected 0 .. "),
    ({"seed": "a"}, TypeError, "seed: expected an integer"),
    ({"restart_prob": 1.5}, ValueError, "restart_prob: expected 0 .. 1, got 1.5"),
    ({"restart_prob": float("nan")}, ValueError, "restart_prob: expected 0 .. 1, got nan"),
    ({"restart_prob": "x"}, TypeError, "restart_prob: expected a number"),
    ({"restart": "x"}, ValueError, "restart: expected 'jump' or 'end', got 'x'"),
    ({"dead_end": "x"}, ValueError, "dead_end: expected 'stay' or 'pad', got 'x'"),
    ({"p": 0}, ValueError, "p: expected a positive number, got 0"),
    ({"q": float("inf")}, ValueError, "q: expected a positive number, got inf"),
    ({"q": "1"}, TypeError, "q: expected a number, got '1'"),
]


def test_bad_walks(device: torch.device) -> None:
    for bad, error, message in BAD_WALKS:
        with named_case(bad):
            store = PlainStore.homogeneous(csc_with_degrees([3, 1, 0, 2]), device=device)
            arguments = {"start": torch.tensor([0]), "length": 2, "seed": 0} | bad
            with pytest.raises(error, match=message):
                RandomWalker(store, EDGE).walk(**arguments)
