"""Cases that one test runs in a loop: a failure names the case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Names the case in the failure of the code under `with`.

        for width in (1, 7, 300):
            with case("width", width):
                assert ...

    Raises:
        AssertionError: the code failed; the message has `values` and the code's own message.
    """
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        names = ", ".join(map(str, values))
        raise AssertionError(f"in the case {names}: {type(error).__name__}: {error}") from error
