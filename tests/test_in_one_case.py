"""`in_one_case`: all values run, and a failure names those that failed."""

from __future__ import annotations

import pytest

from tests.in_one_case import in_one_case
from tests.pairwise import pairwise

RAN: list[tuple[int, str]] = []


@in_one_case(("number", "letter"), pairwise([1, 2], ["a", "b"]))
def add(number: int, letter: str, more: str) -> None:
    RAN.append((number, letter + more))


@in_one_case("number", [1, 2, 3, 4])
def only_odd(number: int) -> None:
    if number == 4:
        pytest.fail("four")
    assert number % 2, "even"


def test_all_values_run_with_the_fixtures() -> None:
    RAN.clear()
    add(more="c")
    assert sorted(RAN) == [(1, "ac"), (1, "bc"), (2, "ac"), (2, "bc")]


def test_a_failure_names_every_value_that_failed() -> None:
    with pytest.raises(AssertionError, match="failed with 2 of 4 values") as failure:
        only_odd()
    assert "number=2: AssertionError: even" in str(failure.value)
    assert "number=4: Failed: four" in str(failure.value)


@in_one_case("word", ["a", "b"])
@pytest.mark.parametrize("number", [1, 2])
def test_beside_parameters_and_fixtures(
    word: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert word in "ab"
    assert number in (1, 2)
    monkeypatch.setenv("PEERGRAPH_WORD", word)


def test_wrong_arguments() -> None:
    with pytest.raises(AssertionError, match="has no argument"):
        in_one_case("other", [1])(only_odd)
    with pytest.raises(AssertionError, match="expected at least one value"):
        in_one_case("number", [])
    with pytest.raises(AssertionError, match="marks"):
        in_one_case("number", [pytest.param(1, marks=pytest.mark.gpus(1))])
