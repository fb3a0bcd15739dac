"""Checks that all kinds of sampling share."""

from __future__ import annotations

import operator


def as_integer(name: str, value: object) -> int:
    """A Python int from any kind of integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    return operator.index(value)
