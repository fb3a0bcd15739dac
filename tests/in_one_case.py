"""Tests that run with many like values within one case, in place of one case for each value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Param = type(pytest.param())


def in_one_case(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Any]:
    """Decorates a test, which runs with every value, one after the other, within one case.

        @in_one_case("name", LAYERS)
        def test_layer(name: str, device: torch.device) -> None: ...

    This saves the cost of a case for values that differ only in data. All values run, also after
    one that fails; the failure names each value that failed and its error. Fixtures are made once
    for all values, so a test that changes one must be parametrised instead.

    Args:
        names: the argument, or a tuple of the arguments.
        values: its values, or a tuple or `pytest.param` of one value for each of the arguments.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [_row(arguments, value, isinstance(names, str)) for value in values]
    assert rows, f"{names}: expected at least one value, got none"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            errors: dict[str, BaseException] = {}
            for row in rows:
                try:
                    test(**row, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    what = ", ".join(f"{name}={value!r}" for name, value in row.items())
                    errors[what] = error
            if errors:
                lines = [
                    f"{what}: {type(error).__name__}: {error}" for what, error in errors.items()
                ]
                message = f"failed with {len(errors)} of {len(rows)} values:\n" + "\n".join(lines)
                raise AssertionError(message) from next(iter(errors.values()))

        signature = inspect.signature(test)
        missing = [name for name in arguments if name not in signature.parameters]
        assert not missing, f"{test.__name__} has no argument {missing}"
        kept = [p for name, p in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def _row(arguments: tuple[str, ...], value: Any, single: bool) -> dict[str, Any]:
    if isinstance(value, Param):
        assert not value.marks, "values that have marks must be parametrised"
        value = value.values
    elif single:
        value = (value,)
    return dict(zip(arguments, value, strict=True))
