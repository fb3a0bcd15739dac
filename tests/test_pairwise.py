"""Pairwise parameters: every pair of values has a case, and there are few cases."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

from tests.pairwise import pairwise

ARGUMENTS: list[list[Any]] = [["a", "b", "c"], [1, 2, 3, 4], [True, False], [[1], [2], {}]]


def pairs(rows: Iterable[tuple[Any, ...]]) -> set[str]:
    return {str((i, j, row[i], row[j])) for row in rows for i, j in combinations(range(4), 2)}


def test_covers_all_pairs_with_few_cases() -> None:
    rows = [case.values for case in pairwise(*ARGUMENTS)]
    assert pairs(rows) == pairs(product(*ARGUMENTS))
    assert len(rows) <= 16


def test_gives_the_same_cases_each_time() -> None:
    assert pairwise(*ARGUMENTS) == pairwise(*ARGUMENTS)


def test_leaves_out_cases_that_are_not_allowed() -> None:
    def allowed(letter: str, number: int, flag: bool, _: object) -> bool:
        return not (letter == "a" and number > 2) and (flag or number < 4)

    rows = [case.values for case in pairwise(*ARGUMENTS, allowed=allowed)]
    assert all(allowed(*row) for row in rows)
    assert pairs(rows) == pairs(row for row in product(*ARGUMENTS) if allowed(*row))
    assert len(rows) <= 20


def test_keeps_marks_and_ids() -> None:
    mark = pytest.mark.gpus(2)
    cases = pairwise([pytest.param(0, id="none", marks=mark), pytest.param(7)], [int, float])
    assert {case.id for case in cases} == {"none-int", "none-float", None}
    assert {case.values: list(case.marks) for case in cases}[0, int] == [mark]
