"""Plans: named ones, and what `auto` makes of a budget."""

from __future__ import annotations

import json

import pytest

from peergraph.memory import Tiers
from peergraph.printing import format_bytes
from peergraph.store.placement.plan import Item, Placement, Plan, fit, make_plan
from tests.named_case import named_case


def rows(name: str, count: int, row_bytes: int) -> Item:
    return Item("node table", name, count, lambda k: k * row_bytes)


@pytest.mark.parametrize(
    ("name", "tiers"),
    [
        ("replicated", Tiers(replicated=10)),
        ("sharded", Tiers(sharded=10)),
        ("host", Tiers(host=10)),
    ],
)
def test_named_plans_put_all_rows_into_one_tier(name: str, tiers: Tiers) -> None:
    plan = make_plan(name, [rows("x", 10, 4)], 2, None)
    assert plan.tiers("node table", "x") == tiers


def test_fit_replicates_what_fits() -> None:
    assert fit(rows("x", 100, 4), 4, 400) == Tiers(replicated=100)


def test_fit_shards_and_replicates_the_hottest_in_what_is_left() -> None:
    # 400 bytes over 4 ranks are 100 each; a budget of 250 leaves 150 for replicas, of which each
    # replicated row costs 4 bytes and saves 1.
    tiers = fit(rows("x", 100, 4), 4, 250)
    assert tiers == Tiers(replicated=50, sharded=50)
    assert Placement.of(rows("x", 100, 4), tiers).bytes_per_rank(4) <= 250


def test_fit_leaves_the_coldest_on_the_host() -> None:
    assert fit(rows("x", 100, 4), 4, 60) == Tiers(sharded=60, host=40)


def test_fit_on_one_rank_does_not_shard() -> None:
    assert fit(rows("x", 100, 4), 1, 100) == Tiers(replicated=25, host=75)


def test_fit_with_no_budget_is_all_host() -> None:
    assert fit(rows("x", 100, 4), 4, 0) == Tiers(host=100)
    assert fit(rows("x", 100, 4), 1, -5) == Tiers(host=100)


def test_fit_of_no_rows() -> None:
    assert fit(rows("x", 0, 4), 4, 0).rows == 0


BUDGETS = [
    *[(1, 0), (1, 100), (1, 1000), (2, 1), (2, 399), (2, 5000)],
    *[(3, 0), (3, 17), (3, 1000), (4, 17), (4, 100), (4, 399)],
]


def test_auto_stays_within_the_budget() -> None:
    degrees = [97, 40, 13, 8, 8, 5, 1, 1, 0, 0]
    structure = Item("structure", "g", 10, lambda k: 16 * k + 4 * sum(degrees[:k]))
    for world_size, budget in BUDGETS:
        with named_case(world_size, budget):
            plan = make_plan(
                "auto", [structure, rows("y", 10, 8), rows("x", 10, 37)], world_size, budget
            )

            # Each sharded item may round up by a byte.
            assert plan.bytes_per_rank() <= budget + 3
            for item, placement in zip(["g", "y", "x"], plan.placements, strict=True):
                assert placement.name == item
                assert placement.tiers.rows == 10


def test_auto_places_structure_before_features() -> None:
    structure = Item("structure", "g", 10, lambda k: 10 * k)
    plan = make_plan("auto", [structure, rows("x", 10, 10)], 1, 100)
    assert plan.tiers("structure", "g") == Tiers(replicated=10)
    assert plan.tiers("node table", "x") == Tiers(host=10)


def test_plan_survives_json_and_compares() -> None:
    plan = make_plan("auto", [rows("x", 100, 4)], 4, 250)
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.tiers("node table", "x") == plan.tiers("node table", "x")
    assert again == plan
    assert again != make_plan("auto", [rows("x", 100, 4)], 4, 60)


def test_plan_prints_what_lies_where() -> None:
    text = str(make_plan("auto", [rows("x", 100, 4)], 4, 250))
    assert "4 ranks" in text
    assert "50.0 %" in text
    assert "budget 250 B" in text


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"plan must be a Plan or one of auto.*'fast'"):
        make_plan("fast", [], 1, None)
    with pytest.raises(ValueError, match="memory_budget"):
        make_plan("auto", [], 1, None)
    with pytest.raises(KeyError, match="no structure 'g'"):
        make_plan("host", [], 1, None).tiers("structure", "g")


def test_format_bytes() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]
