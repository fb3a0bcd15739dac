"""The cost model against arithmetic by hand, and choices against all choices there are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Tiers
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.cost_model import (
    AccessPattern,
    HitRateCurve,
    host_seconds,
    peer_seconds,
    predict,
)
from peergraph.store.placement.partition_solver import solve
from peergraph.store.placement.plan import Item
from peergraph.store.placement.prediction import Prediction, format_predictions
from peergraph.store.placement.tier_choice import bytes_on_gpu, choose_tiers, tiers_of_ratio
from tests.named_case import named_case


def switch(count: int, peer: float = 50.0, host: float = 10.0) -> Topology:
    bandwidth = [[400.0 if i == j else peer for j in range(count)] for i in range(count)]
    return Topology.from_matrix(bandwidth, host, memory=1, ingress=[peer] * count)


def rows(name: str, count: int, row_bytes: int) -> Item:
    return Item("node table", name, count, lambda k: k * row_bytes)


def power_law(count: int, exponent: float = 1.0) -> torch.Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64) ** -exponent


def load(item: Item, hotness: torch.Tensor, row_bytes: int, reads: float = 1000.0) -> AccessPattern:
    return AccessPattern(item, HitRateCurve.of(hotness), reads, row_bytes, row_bytes)


@pytest.mark.parametrize("count", [1, 2, 100, 5000])
def test_curve_follows_the_counts(count: int) -> None:
    hotness = power_law(count)
    curve = HitRateCurve.of(hotness)
    exact = np.concatenate([[0], np.cumsum(hotness.numpy())]) / float(hotness.sum())
    rates = [curve.hit_rate(k) for k in range(count + 1)]
    assert np.allclose(rates, exact, atol=2e-3)
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(1)


def test_curve_without_reads_is_uniform() -> None:
    assert HitRateCurve.of(torch.zeros(10)).hit_rate(5) == pytest.approx(0.5)
    assert HitRateCurve.uniform(10).hit_rate(5) == pytest.approx(0.5)
    assert HitRateCurve.of(torch.zeros(0)).hit_rate(0) == 0
    assert HitRateCurve.uniform(0).hit_rate(0) == 0


def test_prediction_behind_a_switch() -> None:
    """1000 reads of 4 bytes; rows are read alike: 20 % near, 40 % sharded, 40 % on the host."""
    one = load(rows("x", 100, 4), torch.ones(100), 4)
    expected = predict(one, Tiers(20, 40, 40), solve(switch(4)))
    assert expected.hits == pytest.approx((0.2, 0.4, 0.4))
    assert expected.link_bytes[1] == pytest.approx((400, 800 + 400, 400, 400, 1600))


def test_prediction_on_the_ring() -> None:
    """Two partitions at home, one over each link."""
    one = load(rows("x", 100, 4), torch.ones(100), 4)
    expected = predict(one, Tiers(0, 100, 0), solve(machine("dgx1-ring4")))
    assert all(sum(row) == pytest.approx(4000) for row in expected.link_bytes)
    assert all(row[4] == 0 for row in expected.link_bytes)


def test_seconds_of_a_byte_from_peers() -> None:
    # Three quarters of the sharded bytes come from peers, at 50 together.
    assert peer_seconds(switch(4), solve(switch(4)), 4) == pytest.approx(3 / 4 / 50)
    # On links of their own the slowest link counts: GPUs 0 and 1 share a single one of 25 GB/s.
    ring = machine("dgx1-ring4")
    assert peer_seconds(ring, solve(ring), 4) == pytest.approx(1 / 4 / 25e9)
    assert peer_seconds(switch(1), solve(switch(1)), 4) == 0


def test_lists_on_the_host() -> None:
    """In no order, every place is an address to translate."""
    topology = replace(switch(1), host_reads=(2.0,))
    lists = AccessPattern(
        rows("g", 100, 4), HitRateCurve.uniform(100), 1000, 64, 32, places=3, is_table=False
    )
    assert host_seconds(topology, lists) == pytest.approx(1 / 10)  # 6.4 s a list, more than 3 / 2
    topology = replace(topology, host_reads=(0.1,))
    assert host_seconds(topology, lists) == pytest.approx(3 / 0.1 / 64)
    # A choice sees it: lists come nearer before rows that save more bytes.
    cold = load(rows("x", 100, 4), torch.ones(100), 64)
    assert choose_tiers([lists, cold], topology, solve(topology), 400) == [
        Tiers(replicated=100),
        Tiers(host=100),
    ]


def test_cpu_threads_bring_rows_where_they_are_faster() -> None:
    topology = replace(switch(1), host_reads=(0.01,))
    scattered = load(rows("x", 10**6, 512), torch.ones(10), 512)
    assert host_seconds(topology, scattered) == pytest.approx(1 / 0.01 / 512)
    faster = replace(topology, staged=((512, (40.0,)),))
    assert host_seconds(faster, scattered) == pytest.approx(1 / 40)
    lists = replace(scattered, is_table=False)
    assert host_seconds(faster, lists) == host_seconds(topology, scattered)


def additive_seconds(
    one: AccessPattern, tiers: Tiers, peer: float, host: float, world: int
) -> float:
    """Time of links alone, which is what choices are made by."""
    near, on_gpus = (
        one.curve.hit_rate(tiers.replicated),
        one.curve.hit_rate(tiers.replicated + tiers.sharded),
    )
    sharded = (on_gpus - near) * (world - 1) / world / peer
    return one.reads * one.read_bytes * (sharded + (1 - on_gpus) / host)


@pytest.mark.parametrize(("world", "peer", "host"), [(4, 50, 10), (2, 30, 25), (4, 12, 10)])
def test_choice_against_all_choices(world: int, peer: float, host: float) -> None:
    for budget in (0, 13, 40, 64, 100, 150, 230, 400):
        with named_case("budget", budget):
            assert_best_choice(budget, world, peer, host)


def assert_best_choice(budget: int, world: int, peer: float, host: float) -> None:
    topology = switch(world, peer, host)
    partitions = solve(topology)
    loads = [
        load(rows("x", 12, 16), power_law(12), 16, reads=30),
        load(rows("y", 10, 4), power_law(10, 0.5), 4, reads=70),
    ]

    def total(tiers: tuple[Tiers, ...]) -> float:
        return sum(
            additive_seconds(one, t, peer, host, world) for one, t in zip(loads, tiers, strict=True)
        )

    def fits(tiers: tuple[Tiers, ...]) -> bool:
        sizes = [bytes_on_gpu(one.item, t, partitions) for one, t in zip(loads, tiers, strict=True)]
        return sum(sizes) <= budget

    choice = tuple(choose_tiers(loads, topology, partitions, budget))
    assert fits(choice)
    ways = [
        [Tiers(r, g - r, n - g) for g in range(n + 1) for r in range(g + 1)]
        for n in (one.item.rows for one in loads)
    ]
    best = min(total(pair) for pair in itertools.product(*ways) if fits(pair))
    # Moves are whole rows, so a remainder smaller than the widest row may stay unused.
    spare = max(one.curve.hit_rate(1) * one.reads * one.read_bytes / host for one in loads)
    assert best <= total(choice) + 1e-9
    assert total(choice) <= best + spare


def test_all_is_replicated_where_it_fits() -> None:
    topology = switch(4)
    one = load(rows("x", 100, 4), power_law(100), 4)
    assert choose_tiers([one], topology, solve(topology), 400) == [Tiers(replicated=100)]
    # Without replication it is sharded all the same: XGNN's placement.
    assert choose_tiers([one], topology, solve(topology), 400, replicate=False) == [
        Tiers(sharded=100)
    ]


def test_peers_slower_than_the_host_are_not_read() -> None:
    topology = switch(2, peer=5, host=20)
    one = load(rows("x", 100, 4), power_law(100), 4)
    (tiers,) = choose_tiers([one], topology, solve(topology), 200)
    assert tiers == Tiers(replicated=50, host=50)


@pytest.mark.parametrize("name", ["single", "pcie2"])
def test_without_peers_nothing_is_sharded(name: str) -> None:
    topology = machine(name)
    one = load(rows("x", 100, 4), power_law(100), 4)
    (tiers,) = choose_tiers([one], topology, solve(topology), 200)
    assert tiers == Tiers(replicated=50, host=50)


def test_rows_that_get_hotter_move_together() -> None:
    """Structure in the order of feature reads need not be in its own order."""
    topology = switch(1)
    one = load(rows("x", 10, 4), torch.arange(10), 4)
    assert choose_tiers([one], topology, solve(topology), 12) == [Tiers(3, 0, 7)]


@pytest.mark.parametrize(("ratio", "near"), [(0.0, 0), (0.31, 31), (1.0, 100)])
def test_ratio(ratio: float, near: int) -> None:
    item = rows("x", 100, 4)
    assert tiers_of_ratio(item, ratio, solve(switch(4))) == Tiers(0, near, 100 - near)
    assert tiers_of_ratio(item, ratio, solve(switch(1))) == Tiers(near, 0, 100 - near)


def test_ratio_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"ratio must be in 0..1, got 1.5"):
        tiers_of_ratio(rows("x", 100, 4), 1.5, solve(switch(4)))


def test_no_rows_and_no_budget() -> None:
    topology = switch(4)
    empty = load(rows("x", 0, 4), torch.zeros(0), 4)
    full = load(rows("y", 10, 4), torch.ones(10), 4)
    assert choose_tiers([empty, full], topology, solve(topology), 0) == [Tiers(), Tiers(host=10)]
    assert choose_tiers([full], topology, solve(topology), -5) == [Tiers(host=10)]
    assert predict(empty, Tiers(), solve(topology)).hits == (0, 0, 0)


def test_predictions_print() -> None:
    one = Prediction("node table", "x", (0.5, 0.25, 0.25), ((2e6, 1e6, 1e6), (1e6, 2e6, 1e6)))
    text = format_predictions([one, one])
    assert "50.0 %" in text
    assert text.splitlines()[-1].split() == ["to", "GPU", "1", "2.0", "4.0", "2.0"]
