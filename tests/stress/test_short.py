"""A short stress run: some of each kind, and a few batches."""

from __future__ import annotations

import pytest

from tests.stress.leftovers import Watch
from tests.stress.runs import run_long, run_scenario
from tests.stress.scenarios import Scenario, scenarios

SEED = 5
SOME = [
    Scenario("kill", "sample", 0, 2, delay=0.001),
    Scenario("terminate", "close", 1, 3),
    Scenario("raise", "build", 1, 2),
    Scenario("pause", "gather", 0, 2),
    Scenario("disagree", "collectives", 1, 3),
    Scenario("full disk", "save", 0, 2),
    Scenario("full disk", "build", 0, 2),
]


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch("cpu")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("scenario", SOME, ids=str)
def test_some_of_each_kind(scenario: Scenario, watch: Watch) -> None:
    assert run_scenario(scenario, watch).wrong == []


@pytest.mark.timeout(200)
def test_batches(watch: Watch) -> None:
    assert run_long(60, 2, SEED, "cpu", watch).wrong == []


def test_a_seed_says_everything() -> None:
    assert scenarios(SEED, [2, 3], "cpu") == scenarios(SEED, [2, 3], "cpu")
    assert scenarios(SEED, [2, 3], "cpu") != scenarios(SEED + 1, [2, 3], "cpu")
