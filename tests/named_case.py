"""Names what a test compares where one case goes through many kinds of data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def named_case(*values: object) -> Iterator[None]:
    """Adds `values` to the message of a failure inside the block.

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
