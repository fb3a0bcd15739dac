"""Reads Peergraph's environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def read_variable(name: str, parse: Callable[[str], T], expected: str, default: T) -> T:
    """Returns the value of an environment variable.

    Args:
        name: the name of the variable.
        parse: converts the text to the value; raises ValueError or KeyError for a wrong text.
        expected: a description of valid texts, for the error.
        default: the value if the variable is not set.

    Raises ValueError, which names the variable, what was expected and what was found.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {expected}, got {text!r}") from None
