"""Checks of numbers that users pass, before they become loops, sizes or deadlines."""

from __future__ import annotations

import operator

__all__ = ["MAX_SECONDS", "check_number", "check_real", "check_seconds"]

MAX_SECONDS = 1_000_000.0
"""Of a deadline: systems wait at most 2^31 milliseconds."""


def check_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raises TypeError for a value that is no integer, ValueError for one out of range.

    Args:
        value: None is not checked.
    """
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r}")
    number = operator.index(value)
    if number < least:
        limit = f"be at least {least}" if least else "not be negative"
        raise ValueError(f"{name} must {limit}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")


def check_real(name: str, value: object, least: float, most: float) -> None:
    """Raises TypeError for a value that is no number, ValueError for one out of range and for NaN.

    Args:
        value: None is not checked.
    """
    if value is None:
        return
    _check_is_number(name, value)
    if not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"{name} must be in {least:g}..{most:g}, got {value}")


def check_seconds(name: str, value: object) -> None:
    """Raises TypeError or ValueError for a duration that is not 0 to :data:`MAX_SECONDS`.

    Args:
        value: None is not checked.
    """
    if value is None:
        return
    _check_is_number(name, value)
    if not 0 < value <= MAX_SECONDS:  # type: ignore[operator]
        raise ValueError(
            f"{name} must be a positive number of seconds, at most {MAX_SECONDS:.0f}, got {value}"
        )


def _check_is_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
