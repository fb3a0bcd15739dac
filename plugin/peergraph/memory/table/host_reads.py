"""How a GPU reads rows of the host's memory: by its kernels, by CPU threads, or by both at once.

Kernels read pinned memory without a copy, sorted by address at the link's speed where rows lie
close. They wait for addresses to be translated where rows are strewn; CPU threads that gather into
pinned staging, overlapped with copies, do not, but are slower where they are few. Which way is
fastest is measured once per machine, with the topology.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from peergraph.json_fields import Fields, parse_json
from peergraph.memory.device.machine_cache import keep

KERNEL, STAGED, BOTH = "kernel", "staged", "both"
# Staging occupies CPU threads and waits on the host: it must be worth that.
_LEAST_GAIN = 1.1
STREWN_BYTES = 8 << 30
"""From so many bytes on a mini-batch's rows lie far apart: a GPU translates an address for each."""


class Speeds(NamedTuple):
    """Bytes per second of rows of a width, by each way."""

    kernel: float
    staged: float
    both: float

    @property
    def share(self) -> float:
        """Of the rows that CPU threads bring where both do, so that both end together."""
        return self.staged / (self.kernel + self.staged)

    @property
    def fastest(self) -> str:
        """The way to take."""
        if max(self.staged, self.both) <= _LEAST_GAIN * self.kernel:
            return KERNEL
        return BOTH if self.both > self.staged else STAGED


_UNKNOWN = Speeds(1.0, 1.0, 1.0)
Rates = Mapping[int, Speeds]


def staged_share(file: Path, row_bytes: int, host_bytes: int) -> float:
    """The share of rows of a width that CPU threads bring, while kernels read the others: 0 for
    kernels alone, 1 for threads alone. As measured (0 where nothing was), or as the environment
    variable PEERGRAPH_HOST_READS says ("kernel", "staged", or "both" in the measured proportion).

    Args:
        file: where :func:`remember` wrote.
        host_bytes: of all of the table's rows on the host.

    Raises:
        ValueError: the variable says something else.
    """
    close, strewn = _known(file)
    known = strewn if host_bytes >= STREWN_BYTES else close
    narrower = [width for width in known if width <= row_bytes]
    speeds = known[max(narrower, default=min(known))] if known else _UNKNOWN
    way = os.environ.get("PEERGRAPH_HOST_READS", speeds.fastest)
    shares = {KERNEL: 0.0, STAGED: 1.0, BOTH: speeds.share}
    if way not in shares:
        names = ", ".join(map(repr, shares))
        raise ValueError(f"PEERGRAPH_HOST_READS must be one of {names}, got {way!r}")
    return shares[way]


def remember(file: Path, close: Rates, strewn: Rates) -> None:
    """Keeps speeds by row bytes, for tables made from now on.

    Args:
        close: of rows that lie near each other.
        strewn: of rows far from each other, as a mini-batch's in a table of
            :data:`STREWN_BYTES` or more.
    """
    by_width = [{str(w): speeds for w, speeds in r.items()} for r in (close, strewn)]
    keep(file, json.dumps(by_width))
    _known.cache_clear()


@cache
def _known(file: Path) -> tuple[Rates, Rates]:
    try:
        values = parse_json(file.read_bytes(), str(file))
        if not isinstance(values, list) or len(values) != 2:
            raise ValueError(f"{file} must be a list of two objects")
        close, strewn = (_rates(Fields(of_kind, str(file))) for of_kind in values)
        return close, strewn
    except (OSError, ValueError):  # damaged: measured anew
        return {}, {}


def _rates(given: Fields) -> Rates:
    return {int(width): _speeds(given, width) for width in given.names()}


def _speeds(given: Fields, width: str) -> Speeds:
    speeds = given.numbers(width)
    if len(speeds) != 3 or min(speeds) < 0 or min(speeds[:2]) == 0 or int(width) < 1:
        given.fail(width, "three speeds of rows of so many bytes")
    return Speeds(*speeds)
