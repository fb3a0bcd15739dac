"""Kinds of arguments that several subcommands take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from peergraph.store import EdgeType, NodeType
from peergraph.store.input.storage import StorageOption

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def integers(text: str) -> tuple[int, ...]:
    """Parses numbers, as in ``15,10,5``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 15,10,5, got {text!r}") from None


def storage(text: str) -> tuple[NodeType | EdgeType | None, str, str]:
    """Type, name and storage of ``x=int8``, ``paper.x=int8`` or ``author,writes,paper.w=int8``."""
    table, _, stored = text.rpartition("=")
    kind, _, name = table.rpartition(".")
    ends = kind.split(",")
    if not name or not stored or len(ends) not in (1, 3):
        raise argparse.ArgumentTypeError(f"expected [TYPE.]TABLE=STORAGE, got {text!r}")
    if len(ends) == 3:
        return (ends[0], ends[1], ends[2]), name, stored
    return kind or None, name, stored


def storage_option(
    options: Sequence[tuple[NodeType | EdgeType | None, str, str]],
) -> StorageOption:
    """Returns the option ``storage`` of values of :func:`storage`."""
    by_type: dict[NodeType | EdgeType, str | dict[str, str]] = {}
    for kind, name, stored in options:
        tables = by_type.setdefault(kind, {}) if kind is not None else by_type
        if not isinstance(tables, dict) or name in tables:
            raise ValueError(f"--storage names {name!r} twice")
        tables[name] = stored
    return by_type


def byte_count(text: str) -> int:
    """Parses a number of bytes, as in ``512M``, ``10GiB`` or ``4096``."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(number[-1:], 1)
    try:
        size = int(float(number if unit == 1 else number[:-1]) * unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected a size like 512M or 10G, got {text!r}"
        ) from None
    if not 0 <= size < 2**63:
        raise argparse.ArgumentTypeError(f"expected 0 or more bytes, below 2^63, got {text}")
    return size
