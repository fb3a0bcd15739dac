"""Many kinds of data within one case of pytest, each of them a subtest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Param = type(pytest.param())


@contextmanager
def named_case(*values: object) -> Iterator[None]:
    """Adds `values` to the message if the block fails; the failure ends the test.

    This is for processes of ranks, which have no fixtures, and for cases that build on each other;
    others are subtests of pytest.

    for op in ["add", "mul"]:
        with named_case(op):
            check(op)
    """
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        # As `add_note` does, which Python 3.10 lacks; pytest prints these notes on all versions.
        note = f"in the case {', '.join(map(str, values))}"
        vars(error).setdefault("__notes__", []).append(note)
        raise


def named_cases(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Any]:
    """Decorates a test, which runs in a subtest for every value, one after the other.

        @named_cases("name", LAYERS)
        def test_layer(name: str, device: torch.device) -> None: ...

    All values run, also where some fail. Fixtures are made once for all values, so a test that
    changes one must be parametrised instead.

    Args:
        names: the argument, or a tuple of the arguments.
        values: its values, or a tuple or `pytest.param` of one value for each of the arguments.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [_row(arguments, value, isinstance(names, str)) for value in values]
    assert rows, f"{names}: expected at least one value, got none"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(subtests: pytest.Subtests | None = None, **fixtures: Any) -> None:
            for row in rows:
                names = [f"{name}={value!r}" for name, value in row.items()]
                context = named_case(*names)
                if subtests is not None:  # None: the function is called, by no test
                    context = subtests.test(", ".join(names))
                with context:
                    test(**row, **fixtures)

        signature = inspect.signature(test)
        missing = [name for name in arguments if name not in signature.parameters]
        assert not missing, f"{test.__name__} has no argument {missing}"
        # A test may be decorated twice: the outer values are the subtests then.
        inner = (*arguments, "subtests")
        fixtures = [p for name, p in signature.parameters.items() if name not in inner]
        fixtures.append(inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY))
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


def _row(arguments: tuple[str, ...], value: Any, single: bool) -> dict[str, Any]:
    if isinstance(value, Param):
        assert not value.marks, "values that have marks must be parametrised"
        value = value.values
    elif single:
        value = (value,)
    return dict(zip(arguments, value, strict=True))
