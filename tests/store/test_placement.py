"""From reads, ratios and links to plans, and stores built by them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group, Tiers
from peergraph.memory.table.partitions import one_partition_per_gpu
from peergraph.memory.topology.measure import measure_topology
from peergraph.sampling import presample
from peergraph.store import EDGE, NODE, Plan, Store
from peergraph.store.hotness.good_turing import expected_reads
from peergraph.store.placement import planner
from peergraph.store.placement.options import complete_options
from peergraph.store.placement.partition_solver import solve
from peergraph.store.placement.plan import Item, Placement
from peergraph.store.placement.ratios import ShardRatios, choose_by_cost, place_items, predict_items
from peergraph.store.placement.reads import BatchReads
from tests.named_case import named_case
from tests.store.graphs import heterogeneous_source, homogeneous_source
from tests.store.same_graph import assert_same_graph

HEAT = torch.arange(100, 0, -1)


def items() -> list[Item]:
    return [
        Item("structure", "g", 100, lambda k: 40 * k, EDGE),
        Item("edge ids", "g", 600, lambda k: 4 * k, EDGE),
        Item("node table", "y", 100, lambda k: 8 * k, NODE),
        Item("node table", "x", 100, lambda k: 64 * k, NODE),
    ]


def reads() -> BatchReads:
    return BatchReads.by_nodes({NODE: HEAT}, {EDGE: 600})


def test_reads_without_counts_are_no_more_than_there_is() -> None:
    structure, edge_ids, _, x = (reads().access_pattern(item) for item in items())
    assert structure.reads == x.reads == 100
    assert edge_ids.reads == 600
    assert x.width == x.read_bytes == 64
    # Each list: its bounds, and six neighbours, 32 bytes each.
    assert structure.read_bytes == 32 * (2 + 6)
    assert x.curve.hit_rate(50) == pytest.approx(float(HEAT[:50].sum() / HEAT.sum()))
    assert edge_ids.curve.hit_rate(300) == pytest.approx(0.5)


def test_reads_by_counts() -> None:
    source = homogeneous_source()
    with Store.build(source, device="cpu") as store:
        counts = presample(store, [3, 2], torch.arange(20), 5, epochs=2)
    order = torch.argsort(counts.features[NODE], descending=True, stable=True)
    reads_by = BatchReads.of(counts, {}, {NODE: order}, {EDGE: 400})
    curve, rows = reads_by.nodes[NODE]
    assert rows == pytest.approx(float(counts.features[NODE].sum()) / 8)
    top = expected_reads(counts.features[NODE][order])
    assert curve.hit_rate(10) == pytest.approx(float(top[:10].sum() / top.sum()))
    assert reads_by.edges[EDGE] == counts.edges[EDGE] / 8
    assert reads_by.expanded[EDGE][1] == pytest.approx(float(counts.structure[EDGE].sum()) / 8)


def test_expected_reads_are_those_of_another_epoch() -> None:
    rates = torch.exp(1.3 * torch.randn(20_000, generator=torch.Generator().manual_seed(1)))
    this_epoch, next_time = (
        torch.poisson(rates, generator=torch.Generator().manual_seed(s)).long() for s in (2, 3)
    )
    expected = expected_reads(this_epoch)
    assert expected.dtype == torch.float64
    for times in (0, 1, 2, 5):
        real = float(next_time[this_epoch == times].double().mean())
        assert float(expected[this_epoch == times].mean()) == pytest.approx(real, rel=0.15)
    assert torch.equal(expected[this_epoch > 7], this_epoch[this_epoch > 7].double())


def test_expected_reads_of_few_rows() -> None:
    for counts in ([], [0], [3], [0, 0, 9], [1, 1, 1]):
        with named_case(counts):
            expected = expected_reads(torch.tensor(counts, dtype=torch.int64))
            assert expected.shape == (len(counts),)
            assert bool(((expected >= 0) & torch.isfinite(expected)).all())


def test_the_most_read_rows_of_few_batches_stay_hot() -> None:
    counts = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2], dtype=torch.int64)
    assert expected_reads(counts).tolist() == [0.75] * 4 + [4 / 3] * 3 + [2.0] * 2
    assert expected_reads(torch.tensor([0, 1, 1])).tolist() == [1.0, 1.0, 1.0]


def share(shares: ShardRatios, budget: int, world: int = 4) -> list[Tiers]:
    partitions = one_partition_per_gpu(world)
    topology = machine(f"full{world}")
    rest = choose_by_cost(reads(), topology, partitions)
    return place_items(items(), budget, shares, partitions, rest)


def bytes_of(tiers: list[Tiers], world: int = 4) -> int:
    placed = map(Placement.of, items(), tiers)
    return sum(p.bytes_per_rank(world) for p in placed)


def test_budget_is_kept() -> None:
    for budget in (0, 500, 2000, 4000, 10000, 20000):
        with named_case(budget):
            for first in (None, "structure", "features"):
                tiers = share(ShardRatios(first=first), budget)
                assert bytes_of(tiers) <= budget
                assert [t.rows for t in tiers] == [item.rows for item in items()]


def test_first_gets_the_memory() -> None:
    structure = share(ShardRatios(first="structure"), 7000)
    assert structure[:2] == [Tiers(replicated=100), Tiers(replicated=600)]
    features = share(ShardRatios(first="features"), 7300)
    assert features[2:] == [Tiers(replicated=100), Tiers(replicated=100)]


def test_ratios() -> None:
    tiers = share(ShardRatios(graph_ratio=0.5, feature_ratio=0.25), 2000)
    assert tiers == [
        Tiers(sharded=50, host=50),
        Tiers(sharded=300, host=300),
        Tiers(sharded=25, host=75),
        Tiers(sharded=25, host=75),
    ]
    # What has no ratio gets what is left.
    tiers = share(ShardRatios(graph_ratio=0), 7200)
    assert tiers == [Tiers(host=100), Tiers(host=600), Tiers(replicated=100), Tiers(replicated=100)]


def test_ratios_beyond_the_budget() -> None:
    # (4000 + 2400) / 4 bytes.
    with pytest.raises(ValueError, match="take 1600 bytes of each rank, the budget is 1599"):
        share(ShardRatios(graph_ratio=1.0), 1599)
    share(ShardRatios(graph_ratio=1.0), 1600)


def test_shares_out_of_range() -> None:
    with pytest.raises(ValueError, match="graph_ratio must be in 0..1, got -0.1"):
        ShardRatios(graph_ratio=-0.1)
    with pytest.raises(ValueError, match="feature_ratio"):
        ShardRatios(feature_ratio=2)
    with pytest.raises(ValueError, match="first must be 'structure' or 'features', got 'x'"):
        ShardRatios(first="x")


def test_plan_with_predictions_prints_and_survives_json() -> None:
    tiers = share(ShardRatios(), 3000)
    predictions = predict_items(items(), tiers, reads(), one_partition_per_gpu(4))
    placements = tuple(map(Placement.of, items(), tiers))
    plan = Plan("auto", 4, 3000, placements, predictions=predictions)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert "expected of a mini-batch" in str(plan)
    assert [p.name for p in plan.predictions] == ["g", "g", "y", "x"]


def test_copies_count_as_memory() -> None:
    placement = Placement.of(items()[3], Tiers(10, 80, 10))
    plan = Plan("solver", 8, None, (placement,), solve(machine("dgx1")))
    assert plan.copies == 2
    assert plan.bytes_per_rank() == 640 + 2 * 80 * 64 // 8


RATIOS = [(0.0, 0.0), (0.5, 0.0), (1.0, 0.4), (0.5, 1.0), (1.0, None), (0.0, 1.0)]


def test_store_by_ratios(device: torch.device) -> None:
    for graph_ratio, feature_ratio in RATIOS:
        with named_case(graph_ratio, feature_ratio):
            for source in (homogeneous_source(), heterogeneous_source()):
                with Store.build(
                    source, graph_ratio=graph_ratio, feature_ratio=feature_ratio, device=device
                ) as store:
                    assert_same_graph(store, source)
                    for placement in store.plan.placements:
                        tiers = placement.tiers
                        if placement.kind == "structure" and graph_ratio == 1.0:
                            assert tiers.host == 0
                        if placement.kind == "node table" and feature_ratio == 0.0:
                            assert tiers.host == tiers.rows


class Ranks(Group):
    """Four GPUs, all of one mind."""

    def __init__(self) -> None:
        super().__init__(0, 4, torch.device("cuda", 0), timeout=1)

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * 4

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return value


@pytest.mark.parametrize("measured", [False, True])
def test_auto_takes_the_links_where_they_are_known(
    measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = machine("full4") if measured else None
    monkeypatch.setattr(planner, "cached_topology", lambda group: topology)
    monkeypatch.setattr(planner, "partitions_in_reach", lambda group: None)
    monkeypatch.setattr(planner, "identity", str)
    monkeypatch.setattr(planner, "graph_items", lambda *_: items())
    monkeypatch.setattr(planner, "id_items", lambda *_: [])
    monkeypatch.setattr(planner, "check_room", lambda *_: None)
    options = complete_options({"memory_budget": 3000})
    plan = planner.choose_plan(options, None, {}, {}, reads, (True, False), Ranks())
    assert plan.bytes_per_rank() <= 3000
    assert plan.memory_budget == 3000
    assert len(plan.predictions) == (4 if measured else 0)


@pytest.mark.gpus(1)
def test_auto_on_a_measured_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measure_topology(Group.current(device="cuda"))
    source = homogeneous_source()
    with Store.build(source, memory_budget=5000, device="cuda") as store:
        assert_same_graph(store, source)
        assert len(store.plan.predictions) > 0
        assert store.plan.bytes_per_rank() <= 5000


def test_store_errors() -> None:
    source = homogeneous_source()
    with pytest.raises(ValueError, match="are for plan='auto'"):
        Store.build(source, plan="host", graph_ratio=0.5, device="cpu")
    with pytest.raises(ValueError, match="graph_ratio must be in"):
        Store.build(source, graph_ratio=1.5, device="cpu")
    with pytest.raises(ValueError, match="the budget is 10"):
        Store.build(source, feature_ratio=1.0, memory_budget=10, device="cpu")
    with pytest.raises(ValueError, match="plan='solver' needs a topology"):
        Store.build(source, plan="solver", device="cpu")
    with pytest.raises(ValueError, match="topology has 4 GPUs, there are 1 ranks"):
        Store.build(source, topology=machine("full4"), device="cpu")
    with pytest.raises(ValueError, match="needs a memory_budget"):
        Store.build(source, topology=machine("single"), device="cpu")
    with Store.build(source, plan="sharded", device="cpu") as store:
        copied = replace(store.plan, partitions=solve(machine("dgx1")))
    assert Plan.from_dict(json.loads(json.dumps(copied.to_dict()))) == copied
    with pytest.raises(ValueError, match="partitions are for 8 GPUs, there are 1 ranks"):
        Store.build(source, plan=copied, device="cpu")
