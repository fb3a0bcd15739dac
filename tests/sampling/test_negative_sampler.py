"""NegativeSampler against its specification (peergraph.reference.walks), and its chances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.reference import walks as reference
from peergraph.sampling import NegativeSampler
from peergraph.sampling.negative.node_distribution import running_sum
from peergraph.store import EdgeSource, GraphSource, Store
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise
from tests.sampling.plain_store import (
    EDGE,
    INDEX_DTYPES,
    LAYOUTS,
    NODE,
    PlainStore,
    random_csc,
)
from tests.sampling.walk_graphs import BY, RELATIONS, TYPES, assert_chances, csc_of

ONES = torch.ones(4)


@named_cases(
    ("index_dtype", "weighted", "timed", "avoid_edges", "mode"),
    pairwise(
        INDEX_DTYPES,
        [False, True],
        ["", "src", "dst", "src dst"],
        [False, True],
        ["binary", "triplet"],
    ),
)
def test_equals_reference(
    device: torch.device,
    index_dtype: torch.dtype,
    weighted: bool,
    timed: str,
    avoid_edges: bool,
    mode: str,
) -> None:
    for name, layout in LAYOUTS.items():
        with named_case(name):
            rng = np.random.default_rng(1)
            csc = random_csc(rng, 40, 40, 12)
            store = PlainStore.homogeneous(
                csc, layout=layout, index_dtype=index_dtype, device=device
            )
            ends, options = [], {}
            for side in ("src", "dst"):
                weight = torch.from_numpy(rng.integers(0, 5, 40))
                times = torch.from_numpy(rng.integers(3, 20, 40)).to(index_dtype)
                options[f"{side}_weight"] = weight if weighted else None
                options[f"{side}_time"] = times if side in timed else None
                ends.append(
                    reference.Endpoint(
                        weight.tolist() if weighted else [1] * 40,
                        times.tolist() if side in timed else None,
                    )
                )
            sampler = NegativeSampler(
                store, mode=mode, amount=2, avoid_edges=avoid_edges, tries=3, **options
            )
            sources = torch.from_numpy(rng.integers(0, 40, 50)).to(index_dtype)
            time = torch.from_numpy(rng.integers(2, 20, 50)).to(index_dtype)
            got = sampler.sample(sources, 2**64 - 1, time=time if timed else None)
            assert got.source.dtype == got.destination.dtype == torch.int64
            assert got.source.shape == ((100,) if mode == "binary" else (50, 2))
            want = reference.negatives(
                csc,
                sources.repeat_interleave(2).tolist() if mode == "triplet" else None,
                100,
                *ends,
                2**64 - 1,
                latest=(time.repeat(2) if mode == "binary" else time.repeat_interleave(2)).tolist(),
                tries=3,
                avoid_edges=avoid_edges,
            )
            assert got.source.flatten().tolist() == want[0]
            assert got.destination.flatten().tolist() == want[1]
            if avoid_edges:
                assert got.is_edge.dtype == torch.bool
                assert got.is_edge.shape == got.source.shape
                assert got.is_edge.flatten().tolist() == want[2]
                assert not all(want[2])
            else:
                assert got.is_edge is None


def test_times(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[]] * 5), device=device)
    times = torch.tensor([5, 2, 9, 5, 7])
    sampler = NegativeSampler(store, amount=1.5, src_time=times, dst_time=times, tries=64)
    positives = torch.tensor([5, 7, 1]).repeat(4000)
    got = sampler.sample(12_000, 1, time=positives)
    for drawn in (got.source.cpu(), got.destination.cpu()):
        assert drawn.shape == (18_000,)
        assert_chances(drawn[0::3].numpy(), {0: 1, 1: 1, 3: 1})
        assert_chances(drawn[1::3].numpy(), {0: 1, 1: 1, 3: 1, 4: 1})
        assert (drawn[2::3] == 1).all()  # nothing is early enough: the earliest


def test_avoided_edges(device: torch.device) -> None:
    # Node 1 has all nodes as in-neighbours, node 2 all but node 0.
    csc = csc_of([[], [0, 1, 2, 3], [1, 2, 3], []])
    store = PlainStore.homogeneous(csc, layout=LAYOUTS["three tiers"], device=device)
    sampler = NegativeSampler(store, avoid_edges=True, tries=64)
    got = sampler.sample(500, 1)
    assert not got.is_edge.any()
    drawn = (4 * got.source + got.destination).cpu().numpy()
    allowed = [4 * s + d for s in range(4) for d in range(4) if d in (0, 3) or (s, d) == (0, 2)]
    assert_chances(drawn, dict.fromkeys(allowed, 1))
    only = NegativeSampler(
        store, avoid_edges=True, dst_weight=torch.tensor([0, 1, 0, 0]), mode="triplet"
    )
    got = only.sample(torch.arange(4), 1)
    assert got.is_edge.tolist() == [[True]] * 4
    assert got.destination.tolist() == [[1]] * 4


@named_cases(
    "weight",
    [
        torch.tensor([0, 1, 2, 0, 5], dtype=torch.int32),
        torch.tensor([0, 1, 2, 0, 5], dtype=torch.uint8),
        torch.tensor([0.0, 0.5, 0.125, 3.25, 0.0]),
        torch.tensor([3.0, 0.0, 1.0], dtype=torch.bfloat16),
        torch.tensor([1e308, 0.5e308, 1.5e308], dtype=torch.float64),
        torch.tensor([1e-310, 2e-310], dtype=torch.float64),
    ],
)
def test_weights(device: torch.device, weight: torch.Tensor) -> None:
    count = weight.numel()
    store = PlainStore.homogeneous(csc_of([[]] * count), device=device)
    sampler = NegativeSampler(store, src_weight=weight, dst_weight=weight.to(device))
    got = sampler.sample(20_000, 3)
    shares = (weight.double() / weight.double().max()).tolist()
    for drawn in (got.source, got.destination):
        assert_chances(drawn.cpu().numpy(), {i: c for i, c in enumerate(shares) if c > 0})


def test_hardly_any_weight(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[]] * 4), device=device)
    weight = torch.tensor([0, 1e-300, 0, 1], dtype=torch.float64)
    for node_weight in (weight, weight[[0, 2, 3, 0]], weight[[0, 2, 1, 0]]):
        got = NegativeSampler(store, dst_weight=node_weight).sample(50, 3)
        assert set(got.destination.tolist()) == {int(node_weight.argmax())}
    # The least weight above 0 keeps the least share that there is.
    sums = running_sum("dst_weight", weight, 4, NODE)
    assert sums is not None
    assert sums.diff(prepend=sums.new_zeros(1))[:3].tolist() == [0, 1, 0]


def test_uniform_pairs_are_independent(device: torch.device) -> None:
    store = PlainStore(TYPES, RELATIONS, layout=LAYOUTS["renumbered"], device=device)
    got = NegativeSampler(store, BY, amount=2.5).sample(torch.zeros(20_001, dtype=torch.int32), 5)
    assert got.source.shape == (50_003,)
    assert int(got.source.max()) == 59
    assert int(got.destination.max()) == 39
    drawn = (got.source // 10 * 4 + got.destination // 10).cpu().numpy()
    assert_chances(drawn, dict.fromkeys(range(24), 1))


def test_degree_weights(device: torch.device) -> None:
    edge_index = torch.tensor([[0, 1, 2, 3, 0, 1, 2], [1, 1, 1, 1, 3, 3, 0]])
    source = GraphSource({NODE: 4}, {EDGE: EdgeSource(coo=edge_index)}, {}, {})
    with Store.build(source, device=device, plan="host") as store:
        sampler = NegativeSampler(store, dst_weight="degree", mode="triplet", amount=8)
        got = sampler.sample(torch.zeros(2500, dtype=torch.int64), 1)
        assert_chances(got.destination.cpu().numpy(), {0: 1, 1: 4, 3: 2})


def test_nothing_to_draw(device: torch.device) -> None:
    store = PlainStore({"a": 0, "b": 2}, {("a", "to", "b"): csc_of([[], []])}, device=device)
    sampler = NegativeSampler(store, avoid_edges=True)
    got = sampler.sample(0, 1)
    assert got.source.shape == got.destination.shape == got.is_edge.shape == (0,)
    with pytest.raises(ValueError, match="sources: there is no node of type 'a' to draw"):
        sampler.sample(3, 1)
    triplets = NegativeSampler(store, mode="triplet", amount=3)
    assert triplets.sample(torch.empty(0, dtype=torch.int64), 1).destination.shape == (0, 3)


BAD_OPTIONS = [
    (
        {"src_time": [1]},
        TypeError,
        "src_time: expected an int32 or int64 tensor, got <class 'list'>",
    ),
    ({"src_time": ONES}, TypeError, "src_time: expected an int32 or int64 tensor, got torch"),
    (
        {"dst_time": ONES[:2].int()},
        ValueError,
        "dst_time: .* a time for each node of type '_N'",
    ),
    ({"mode": "x"}, ValueError, "mode: expected 'binary' or 'triplet', got 'x'"),
    ({"amount": 0}, ValueError, "amount: expected a positive number"),
    ({"amount": "1"}, TypeError, "amount: expected a number, got '1'"),
    ({"amount": 1.5, "mode": "triplet"}, ValueError, "amount: expected an integer for trip"),
    ({"tries": 0}, ValueError, "tries: expected 1 .. "),
    ({"edge_type": ("a", "b", "c")}, ValueError, "edge_type: .* is not one of"),
    ({"src_weight": "degree"}, NotImplementedError, "src_weight: 'degree' is not supported"),
    ({"dst_weight": "x"}, TypeError, "dst_weight: expected a tensor of floats or integers"),
    ({"dst_weight": [1, 2]}, TypeError, "dst_weight: expected a tensor of floats or integers"),
    ({"dst_weight": ONES > 0}, TypeError, "dst_weight: .* got torch.bool"),
    ({"dst_weight": ONES[:3]}, ValueError, r"dst_weight: expected shape \(4,\).*got \(3,\)"),
    ({"src_weight": 0 * ONES}, ValueError, "src_weight: expected at least one weight above 0"),
    ({"src_weight": -ONES}, ValueError, "src_weight: expected finite weights of 0 and more"),
    ({"src_weight": ONES / 0}, ValueError, "src_weight: expected finite weights of 0 and"),
    ({"src_weight": -ONES.int()}, ValueError, "src_weight: expected weights of 0 and more"),
    ({"src_weight": ONES.long() << 61}, ValueError, r"src_weight: .* a sum below 2\*\*62"),
]


def test_bad_options(device: torch.device) -> None:
    for bad, error, message in BAD_OPTIONS:
        with named_case(bad):
            store = PlainStore.homogeneous(csc_of([[1], [], [], [0, 0]]), device=device)
            with pytest.raises(error, match=message):
                NegativeSampler(store, **bad)


def test_bad_positives(device: torch.device) -> None:
    store = PlainStore.homogeneous(csc_of([[1], [], [], [0, 0]]), device=device)
    sampler = NegativeSampler(store, mode="triplet")
    for near in (torch.tensor([1, 4]), torch.tensor([1, 4], device=device)):
        with pytest.raises(IndexError, match=r"sources\[1\] = 4 is out of range for 4 nodes of"):
            sampler.sample(near, 0)
    with pytest.raises(TypeError, match="sources: expected an int32 or int64 tensor"):
        sampler.sample(3, 0)
    with pytest.raises(ValueError, match="sources: expected 0 .. "):
        NegativeSampler(store).sample(-3, 0)
    with pytest.raises(ValueError, match="seed: expected 0 .. "):
        sampler.sample(torch.tensor([1]), -1)
    with pytest.raises(ValueError, match="time: needs src_time or dst_time"):
        sampler.sample(torch.tensor([1]), 0, time=torch.tensor([1]))
    timed = NegativeSampler(store, dst_time=torch.arange(4))
    with pytest.raises(ValueError, match="time: expected the positives' times"):
        timed.sample(torch.tensor([1]), 0)
    with pytest.raises(ValueError, match=r"time: .* a time for each positive, got \(2,\)"):
        timed.sample(torch.tensor([1]), 0, time=torch.tensor([1, 2]))
    two = PlainStore(TYPES, RELATIONS, device=device)
    with pytest.raises(ValueError, match="edge_type: one of .* is needed"):
        NegativeSampler(two)
