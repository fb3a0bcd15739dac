"""Plans of offloaded training: the decision, passes over chunks, tiers, bytes, and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.placing.machines import machine

from peergraph.fullgraph import named_model
from peergraph.fullgraph.dry_run.named_models import assumed_model
from peergraph.fullgraph.layout.volume import Volume
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.fullgraph.plan.spread import Spread, expected_spread

NODE, EDGE = "_N", ("_N", "_E", "_N")
WIDTHS = [128, 128, 128, 172]
PAPERS = named_model(WIDTHS)
NODES, EDGES = 111_059_956, 3_340_000_000
GIB = 1 << 30


def facts(ranks: int = 1, row_bytes: int = 521) -> GraphFacts:
    """As large as ogbn-papers100M with both directions of its edges; each rank needs half."""
    rows, pairs = NODES // ranks, EDGES // ranks // ranks
    volume = Volume(
        tuple(tuple(rows if p == q else rows // 2 for q in range(ranks)) for p in range(ranks)),
        ((pairs,) * ranks,) * ranks,
    )
    return GraphFacts({NODE: (rows,) * ranks}, {EDGE: volume}, {NODE: row_bytes})


def offloaded(plan: FullGraphPlan) -> OffloadPlan:
    assert plan.offload is not None
    return plan.offload


@pytest.mark.parametrize(
    ("widths", "heads", "columns_in", "columns_out"),
    [
        # The sum of the input is kept; every layer's rows are written and read once in each
        # direction. Of the last layer, labelled rows only.
        (WIDTHS, 0, [128, 128, 128, 256, 256], [128, 256, 0, 128, 0]),
        # The product of the second layer is summed: it has fewer columns.
        ([602, 256, 41], 0, [602, 41, 643], [41, 0, 0]),
        # Attention keeps no sums, and has 4 elements of each row for its weights besides.
        (
            [64, 32, 8],
            4,
            [64, 40, 16, 28, 44, 108, 104],
            [40, 48, 0, 12, 32, 40, 0],
        ),
    ],
)
def test_passes(
    widths: list[int], heads: int, columns_in: list[int], columns_out: list[int]
) -> None:
    model = named_model(widths, "gat", heads) if heads else named_model(widths)
    schedule = model.schedule
    found_in, found_out = [], []
    for step in schedule.passes:
        read = {*step.reads, *step.sources, *step.adds}
        found_in.append(schedule.row_bytes(*read) // 4)
        found_out.append(schedule.row_bytes(*step.writes, *step.adds) // 4)
    assert (found_in, found_out) == (columns_in, columns_out)
    for number, step in enumerate(schedule.passes):
        for name in (*step.reads, *step.sources, *step.writes, *step.adds):
            rows = next(r for r in schedule.rows if r.name == name)
            assert rows.first <= number <= rows.last


def test_heads_that_do_not_divide_a_width() -> None:
    """They have columns for all of it."""
    seven, eight = (named_model([64, 32, width], "gat", 4).schedule for width in (7, 8))
    assert seven.rows == eight.rows


def test_streamed_papers_moves_the_bytes_of_the_floor() -> None:
    """Every layer streamed: each stored row crosses the link once in each direction."""
    row = NODES * 128 * 4
    plan = offloaded(
        FullGraphPlan.make(
            facts(),
            machine("single"),
            PlanLimits(memory_budget=125 * GIB, host_memory=400 * GIB, offload=True),
            model=named_model(WIDTHS, labelled=0.011),
        )
    )
    tiers = plan.placement.tiers
    placements = [tiers[name] for name in ("source rows 1", "source rows 2")]
    assert placements == ["device", "host"]
    assert tiers["features"] == "user"
    # The output of layer 2 takes the place of the product before it is summed.
    assert plan.placement.loaded == {("source rows 2", 2)}
    # Of one of the sums, the device has some rows.
    [(name, share)] = plan.placement.parts.items()
    assert name.startswith("sum")
    assert 0 < share < 1
    assert sum(p.from_host for p in plan.passes) == pytest.approx(
        (4 - (2 if name == "sum 1" else 1) * share) * row
    )
    assert row < sum(p.to_host for p in plan.passes) <= 2 * row
    small = offloaded(
        FullGraphPlan.make(
            facts(),
            machine("single"),
            PlanLimits(memory_budget=60 * GIB, host_memory=600 * GIB, num_chunks=128),
            model=PAPERS,
            spreads=[Spread(128, 1.0, 1.0, True)],
        )
    )
    assert set(small.placement.tiers.values()) == {"host", "user"}
    # Destinations read their own rows, too, where those are not on the device.
    assert 9 * row < sum(p.from_host for p in small.passes) <= 10 * row
    assert 3 * row < sum(p.to_host for p in small.passes) <= 4 * row


def test_budget_decides() -> None:
    def plan(budget: int, offload: bool | None = None) -> FullGraphPlan:
        limits = PlanLimits(memory_budget=budget * GIB, host_memory=600 * GIB, offload=offload)
        return FullGraphPlan.make(facts(4), machine("full4"), limits, model=PAPERS)

    resident = plan(200)
    assert resident.offload is None
    assert resident.decision.startswith("resident: resident training takes")
    less = plan(80)
    assert offloaded(less).device_bytes <= 80 * GIB
    assert less.bytes_by_rank[0] == offloaded(less).device_bytes
    asked = plan(140, offload=True)
    assert asked.decision.startswith("offloaded, as asked for")
    assert offloaded(asked).bytes_by_tier["device"] >= offloaded(less).bytes_by_tier["device"]


def test_less_memory_takes_more_chunks_and_bytes() -> None:
    plans = [
        offloaded(
            FullGraphPlan.make(
                facts(4),
                machine("full4"),
                PlanLimits(memory_budget=budget * GIB, offload=True),
                model=PAPERS,
            )
        )
        for budget in (120, 60, 30, 20)
    ]
    moved = [sum(p.from_host + p.to_host for p in plan.passes) for plan in plans]
    assert moved == sorted(moved)
    assert moved[0] < moved[-1]
    for budget, plan in zip((120, 60, 30, 20), plans, strict=True):
        assert plan.device_bytes <= budget * GIB


def test_files_take_what_the_host_has_no_room_for() -> None:
    limits = PlanLimits(memory_budget=120 * GIB, host_memory=120 * GIB)
    with pytest.raises(ValueError, match="host memory is not enough") as error:
        FullGraphPlan.make(facts(), machine("single"), limits, model=PAPERS)
    assert "sum 1" in str(error.value)
    # Features stay where the user has them.
    assert "features" not in str(error.value)
    assert "GiB are missing" in str(error.value)
    limits = replace(limits, file_memory=60 * GIB)
    plan = FullGraphPlan.make(facts(), machine("single"), limits, model=PAPERS)
    assert list(offloaded(plan).placement.tiers.values()).count("file") == 1
    assert any(p.from_files for p in offloaded(plan).passes)
    assert "in files" in str(plan)


def test_a_model_that_is_not_known_is_assumed() -> None:
    plan = FullGraphPlan.make(
        facts(),
        machine("single"),
        PlanLimits(memory_budget=110 * GIB, host_memory=600 * GIB),
        assumed=assumed_model,
    )
    assert offloaded(plan).model.assumed
    assert offloaded(plan).model.name == "gcn 130-256-256-256"
    assert "(assumed)" in plan.decision
    assert "at run time rows are placed by what is free" in str(plan)
    with_model = plan.with_model(PAPERS)
    assert not offloaded(with_model).model.assumed
    assert offloaded(with_model).num_chunks == offloaded(plan).num_chunks


def test_resident_graph_stays_resident() -> None:
    plan = FullGraphPlan.make(facts(4), machine("full4"), PlanLimits(memory_budget=320 * GIB))
    assert plan.offload is None
    assert plan.with_model(PAPERS).offload is None
    with pytest.raises(ValueError, match="does not fit on the devices: offloaded"):
        plan.with_model(named_model([128, 2048, 2048, 172]))


def test_small_budget_says_what_is_needed() -> None:
    with pytest.raises(ValueError, match="not enough for offloaded training") as error:
        FullGraphPlan.make(
            facts(), machine("single"), PlanLimits(memory_budget=8 * GIB), model=PAPERS
        )
    for part in ("structure", "transposes", "rows of a chunk"):
        assert part in str(error.value)
    with pytest.raises(ValueError, match="num_chunks must be at least 1, got 0"):
        FullGraphPlan.make(
            facts(), machine("single"), PlanLimits(memory_budget=GIB, num_chunks=0), model=PAPERS
        )
    with pytest.raises(ValueError, match="num_chunks is for offloaded training"):
        FullGraphPlan.make(facts(), machine("single"), PlanLimits(num_chunks=2, offload=False))
    with pytest.raises(ValueError, match="needs a memory_budget"):
        FullGraphPlan.make(facts(), machine("single"), PlanLimits(offload=True), model=PAPERS)
    with pytest.raises(ValueError, match="needs a model"):
        FullGraphPlan.make(facts(), machine("single"), PlanLimits(memory_budget=GIB, offload=True))


def test_expected_spread() -> None:
    spreads = [expected_spread(facts(4), count) for count in (1, 8, 128)]
    assert [s.counted for s in spreads] == [False] * 3
    assert 1 < spreads[0].alpha < spreads[1].alpha < spreads[2].alpha
    # With as many parts as ranks it is what was counted: each rank needs half of the others' rows.
    assert spreads[0].alpha == pytest.approx(0.25 * (4 + 12 / 2), rel=0.01)
    assert all(s.batches <= s.alpha for s in spreads)
