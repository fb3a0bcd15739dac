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
from peergraph.store.placement.cost_model import AccessPattern, HitRateCurve, predict
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
    found = [curve.hit_rate(k) for k in range(count + 1)]
    assert np.allclose(found, exact, atol=2e-3)
    assert found[0] == 0
    assert found[-1] == pytest.approx(1)


def test_curve_without_reads_is_uniform() -> None:
    assert HitRateCurve.of(torch.zeros(10)).hit_rate(5) == pytest.approx(0.5)
    assert HitRateCurve.uniform(10).hit_rate(5) == pytest.approx(0.5)
    assert HitRateCurve.of(torch.zeros(0)).hit_rate(0) == 0
    assert HitRateCurve.uniform(0).hit_rate(0) == 0


def test_prediction_behind_a_switch() -> None:
    """1000 reads of 4 bytes; rows are read alike: 20 % near, 40 % sharded, 40 % on the host."""
    topology = switch(4)
    one = load(rows("x", 100, 4), torch.ones(100), 4)
    found = predict(one, Tiers(20, 40, 40), topology, solve(topology))
    assert found.hits == pytest.approx((0.2, 0.4, 0.4))
    assert found.link_bytes[1] == pytest.approx((400, 800 + 400, 400, 400, 1600))
    # Three quarters of the sharded bytes come from peers, at 50 together; own memory is faster.
    assert found.seconds == pytest.approx(1200 / 50 + 1600 / 10)


def test_prediction_on_the_ring() -> None:
    """On links of their own the slowest link counts: GPUs 0 and 1 share a single one."""
    topology = machine("dgx1-ring4")
    one = load(rows("x", 100, 4), torch.ones(100), 4)
    found = predict(one, Tiers(0, 100, 0), topology, solve(topology))
    # Two partitions at home, one over each link, of which the slower has 25 GB/s.
    assert found.seconds == pytest.approx(1000 / 25e9)
    assert all(sum(row) == pytest.approx(4000) for row in found.link_bytes)
    assert all(row[4] == 0 for row in found.link_bytes)


def test_prediction_of_own_memory() -> None:
    alone = switch(1)
    one = load(rows("x", 100, 4), torch.ones(100), 4)
    assert predict(one, Tiers(100), alone, solve(alone)).seconds == pytest.approx(4000 / 400)
    # What does not depend on placement is left out, such as the latency of calls.
    slow = Topology("t", alone.bulk, ((3.0,),), alone.memory, 0)
    assert predict(one, Tiers(100), slow, solve(slow)).seconds == pytest.approx(10)
    assert predict(one, Tiers(host=100), slow, solve(slow)).seconds == pytest.approx(400)


def test_prediction_of_lists_on_the_host() -> None:
    """In no order, every place is an address to translate; by rising address, every block is."""
    topology = replace(switch(1), host_reads=(2.0,))
    lists = AccessPattern(
        rows("g", 100, 4), HitRateCurve.uniform(100), 1000, 64, 32, places=3, sorted=False
    )
    found = predict(lists, Tiers(host=100), topology, solve(topology))
    assert found.seconds == pytest.approx(1000 * 64 / 10)  # 6.4 s a list, more than 3 / 2
    topology = replace(topology, host_reads=(0.1,))
    found = predict(lists, Tiers(host=100), topology, solve(topology))
    assert found.seconds == pytest.approx(1000 * 3 / 0.1)
    # A choice sees it: lists come nearer before rows that save more bytes.
    cold = load(rows("x", 100, 4), torch.ones(100), 64)
    assert choose_tiers([lists, cold], topology, solve(topology), 400) == [
        Tiers(replicated=100),
        Tiers(host=100),
    ]


@pytest.mark.parametrize("reads", [3.0, 300.0, 30_000.0])
def test_sorted_reads_of_the_host_share_translations(reads: int) -> None:
    item = rows("x", 200_000, 512)  # half of it on the host, in 781 blocks of 64 KiB
    even = AccessPattern(item, HitRateCurve.uniform(200_000), reads, 512, 512)
    topology = replace(switch(1, host=1e15), host_reads=(1e-3,))
    found = predict(even, Tiers(100_000, 0, 100_000), topology, solve(topology)).seconds
    drawn = torch.randint(200_000, (20, int(reads)), generator=torch.Generator().manual_seed(1))
    met = [len(set((row[row >= 100_000] * 512 // 65536).tolist())) for row in drawn]
    assert found / 1e3 == pytest.approx(sum(met) / 20, rel=0.1 if reads > 100 else 0.5)


def test_cpu_threads_bring_rows_where_they_are_faster() -> None:
    topology = replace(switch(1), host_reads=(1.0,))
    scattered = AccessPattern(rows("x", 10**6, 512), HitRateCurve.uniform(10**6), 8.0, 512, 512)
    by_kernel = predict(scattered, Tiers(host=10**6), topology, solve(topology)).seconds
    assert by_kernel == pytest.approx(8 * 512 / 10)  # the wire, for 8 places take 8 s
    faster = replace(topology, staged=((512, (40.0,)),))
    found = predict(scattered, Tiers(host=10**6), faster, solve(faster)).seconds
    assert found == pytest.approx(8 * 512 / 40)
    lists = replace(scattered, sorted=False)
    assert predict(lists, Tiers(host=10**6), faster, solve(faster)).seconds == by_kernel


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
        taken = [bytes_on_gpu(one.item, t, partitions) for one, t in zip(loads, tiers, strict=True)]
        return sum(taken) <= budget

    found = tuple(choose_tiers(loads, topology, partitions, budget))
    assert fits(found)
    ways = [
        [Tiers(r, g - r, n - g) for g in range(n + 1) for r in range(g + 1)]
        for n in (one.item.rows for one in loads)
    ]
    best = min(total(pair) for pair in itertools.product(*ways) if fits(pair))
    # Moves are whole rows, so a remainder smaller than the widest row may stay unused.
    spare = max(one.curve.hit_rate(1) * one.reads * one.read_bytes / host for one in loads)
    assert best <= total(found) + 1e-9
    assert total(found) <= best + spare


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
    assert predict(empty, Tiers(), topology, solve(topology)).hits == (0, 0, 0)


def test_predictions_print() -> None:
    one = Prediction("node table", "x", (0.5, 0.25, 0.25), 2e-3, ((2e6, 1e6, 1e6), (1e6, 2e6, 1e6)))
    text = format_predictions([one, one])
    assert "50.0 %" in text
    assert "4.000 ms" in text
    assert text.splitlines()[-1].split() == ["to", "GPU", "1", "2.0", "4.0", "2.0"]
