"""Options of the choice that cannot be: each is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.sampling import NeighborSampler
from tests.named_case import named_case
from tests.sampling.plain_store import EDGE, NODE, PlainStore, csc_with_degrees

SEEDS = torch.tensor([0, 1])


@pytest.fixture
def store(device: torch.device) -> PlainStore:
    store = PlainStore.homogeneous(csc_with_degrees([3, 2, 1]), device=device)
    store.add_table(EDGE, "w", np.ones(6, np.float32))
    store.add_table(EDGE, "t", np.arange(6))
    store.add_table(EDGE, "half", np.ones(6, np.float16))
    store.add_table(EDGE, "wide", np.ones((6, 2), np.float32))
    store.add_table(NODE, "t", np.arange(3, dtype=np.int32))
    store.add_table(NODE, "x", np.ones(3, np.float32))
    return store


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_none(store: PlainStore, bad: float) -> None:
    store.add_table(EDGE, "w", np.array([0.0, 1.0, 2.0, bad, 1.0, bad]))
    with pytest.raises(ValueError, match=f"weights: expected finite.* got {bad} for edge 3 of"):
        NeighborSampler(store, [2], weights="w")


BAD_VALUES = [
    ({"weights": "v"}, r"weights: no type has a table 'v', there are .*'w'"),
    ({"weights": {EDGE: "v"}}, r"weights: \('_N', '_E', '_N'\) has no table 'v'"),
    ({"weights": {("a", "b", "c"): "w"}}, r"weights: \('a', 'b', 'c'\) is not one of"),
    ({"weights": "wide"}, r"weights: expected 'wide' to have one column, got \(6, 2\)"),
    ({"node_time": "v"}, "node_time: no type has a table 'v'"),
    ({"edge_time": {NODE: "t"}}, "edge_time: '_N' is not one of"),
    ({"node_time": "t", "edge_time": "t"}, "edge_time: node_time was given, too"),
    ({"temporal_strategy": "first"}, "temporal_strategy: expected 'uniform' or 'last'"),
    ({"time_window": 3}, "time_window: needs node_time or edge_time"),
    ({"time_window": -1, "node_time": "t"}, r"time_window: expected 0 .. 2\*\*63 - 1, got -1"),
    ({"time_window": 2**63, "node_time": "t"}, r"time_window: expected 0 .. 2\*\*63 - 1, got 9"),
    ({"time_window": {EDGE: 3}, "node_time": "t"}, "time_window: .* has no times, only"),
    ({"temporal_strategy": "last"}, "temporal_strategy: 'last' needs node_time or edge_time"),
    ({"skip_zero_weights": True}, "skip_zero_weights: needs weights"),
    (
        {"temporal_strategy": "last", "edge_time": "t", "weights": "w"},
        "weights: temporal_strategy='last' does not draw by them",
    ),
]


def test_value_errors(store: PlainStore) -> None:
    for options, message in BAD_VALUES:
        with named_case(options), pytest.raises(ValueError, match=message):
            NeighborSampler(store, [2], **options)


BAD_TYPES = [
    ({"weights": "t"}, "weights: expected 't' to be one of .*float32.* got torch.int64"),
    ({"weights": "half"}, "weights: expected 'half' to be one of .* got torch.float16"),
    ({"time_window": 2.5, "node_time": "t"}, "time_window: expected an integer, got 2.5"),
    ({"weights": 3}, "weights: expected a name or a dict of names, got 3"),
    ({"node_time": "x"}, "node_time: expected 'x' to be one of .*int64.* got torch.float32"),
    ({"edge_time": "w"}, "edge_time: expected 'w' to be one of .* got torch.float32"),
]


def test_type_errors(store: PlainStore) -> None:
    for options, message in BAD_TYPES:
        with named_case(options), pytest.raises(TypeError, match=message):
            NeighborSampler(store, [2], **options)


def test_seed_times(store: PlainStore) -> None:
    plain = NeighborSampler(store, [2])
    timed = NeighborSampler(store, [2], edge_time="t")
    assert timed.disjoint
    with pytest.raises(ValueError, match="seed_time: the sampler has neither"):
        plain.sample(SEEDS, 1, seed_time=SEEDS)
    with pytest.raises(ValueError, match="seed_start: the sampler has neither"):
        plain.sample(SEEDS, 1, seed_start=SEEDS)
    with pytest.raises(ValueError, match=r"seed_start: expected shape \(2,\), got \(3,\)"):
        timed.sample(SEEDS, 1, seed_time=SEEDS, seed_start=torch.arange(3))
    with pytest.raises(ValueError, match="seed_time: needed, for seeds of type '_N'"):
        timed.sample(SEEDS, 1)
    with pytest.raises(ValueError, match=r"seed_time: expected shape \(2,\), got \(3,\)"):
        timed.sample(SEEDS, 1, seed_time=torch.arange(3))
    with pytest.raises(TypeError, match="seed_time: expected an int32 or int64 tensor"):
        timed.sample(SEEDS, 1, seed_time=torch.rand(2))
    with pytest.raises(TypeError, match="seed_time: expected a tensor or a dict"):
        timed.sample(SEEDS, 1, seed_time=[1, 2])
    with pytest.raises(ValueError, match="seed_time: expected the node types of the seeds"):
        timed.sample(SEEDS, 1, seed_time={"x": SEEDS})


def test_bad_seeds_with_their_own_times(store: PlainStore) -> None:
    sampler = NeighborSampler(store, [2], node_time="t")
    with pytest.raises(IndexError, match=r"seeds\[1\] = 3"):
        sampler.sample(torch.tensor([0, 3]), 1)
    assert sampler.sample(SEEDS, 1).nodes[NODE].numel() >= 2
