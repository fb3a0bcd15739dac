"""Kinds of arguments that several subcommands take."""

from __future__ import annotations

import argparse

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def integers(text: str) -> tuple[int, ...]:
    """``15,10,5``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 15,10,5, got {text!r}") from None


def byte_count(text: str) -> int:
    """``512M``, ``10GiB``, ``4096``."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(number[-1:], 1)
    try:
        return int(float(number if unit == 1 else number[:-1]) * unit)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a size like 512M or 10G, got {text!r}"
        ) from None
