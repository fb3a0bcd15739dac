"""Parameters of tests that cover all pairs of values, in place of all combinations.

Most errors depend on one argument or on two together. A covering of all pairs finds these with
a fraction of the cases of the full product: three arguments of four values take 16 cases, not 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from allpairspy import AllPairs

Param = type(pytest.param())


def pairwise(
    *arguments: Sequence[Any], allowed: Callable[..., bool] = lambda *values: True
) -> list[Any]:
    """Cases for `pytest.mark.parametrize` in which every two values of two arguments meet.

        @pytest.mark.parametrize(("dtype", "width", "mean"), pairwise(DTYPES, [1, 7], MEANS))

    Args:
        arguments: the values of each argument, at least two arguments. A value may be a
            `pytest.param` with marks and an id.
        allowed: tells whether a case may run. It gets the values of a case, in the order of
            `arguments`. Pairs that no allowed case has are not covered.

    Returns:
        A list of `pytest.param`, the same in every run.
    """

    # Positions stand for the values, which need not be hashable.
    def is_allowed(row: Sequence[int]) -> bool:
        if len(row) < len(arguments):  # allpairspy asks about the beginnings of rows too
            return True
        return allowed(*(_value(values[i]) for values, i in zip(arguments, row, strict=True)))

    positions = [list(range(len(values))) for values in arguments]
    rows = [tuple(row) for row in AllPairs(positions, filter_func=is_allowed)]
    # With a filter, allpairspy ends at the first row that it cannot improve.
    missing = set()
    for row in filter(is_allowed, product(*positions)):
        missing |= _pairs(row)
    missing -= {pair for row in rows for pair in _pairs(row)}
    for row in filter(is_allowed, product(*positions)):
        if missing & _pairs(row):
            missing -= _pairs(row)
            rows.append(row)
    return [_case([values[i] for values, i in zip(arguments, row, strict=True)]) for row in rows]


def _pairs(row: Iterable[int]) -> set[Any]:
    return set(combinations(enumerate(row), 2))


def _value(value: Any) -> Any:
    return value.values[0] if isinstance(value, Param) else value


def _case(values: list[Any]) -> Any:
    params = [value for value in values if isinstance(value, Param)]
    marks = [mark for param in params for mark in param.marks]
    named = any(param.id is not None for param in params)
    name = "-".join(_name(value) for value in values) if named else None
    return pytest.param(*map(_value, values), marks=marks, id=name)


def _name(value: Any) -> str:
    if isinstance(value, Param):
        return value.id if isinstance(value.id, str) else _name(value.values[0])
    return str(getattr(value, "__name__", value))
