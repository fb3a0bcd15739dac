"""How a GPU reads rows in host memory: by its kernels, by CPU threads, or by both at once.

Kernels read pinned memory without a copy. Where the rows are close together and sorted by address,
they do so at the link's speed; where rows are far apart, they wait for address translations. CPU
threads that gather into pinned buffers, overlapped with copies, do not wait for these, but are
slower where there are few threads. The fastest way is measured once per machine, together with the
topology.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from peergraph.json_fields import Fields, parse_json
from peergraph.memory.device.machine_cache import keep

# Staging occupies CPU threads and waits on the host, so it must be faster by this factor.
_LEAST_GAIN = 1.1
SPARSE_BYTES = 8 << 30
"""In so much host memory a mini-batch's rows are far apart: a GPU translates each row's address."""


class Speeds(NamedTuple):
    """Bytes per second of reads of rows of one width, by each way."""

    kernel: float
    staged: float
    both: float

    @property
    def both_share(self) -> float:
        """The share of rows for CPU threads with which kernels and threads end together."""
        return self.staged / (self.kernel + self.staged)

    @property
    def fastest_share(self) -> float:
        """The share of rows for CPU threads in the fastest way; 0 is kernels alone."""
        if max(self.staged, self.both) <= _LEAST_GAIN * self.kernel:
            return 0.0
        return self.both_share if self.both > self.staged else 1.0


SpeedsByWidth = Mapping[int, Speeds]


def staged_share(file: Path, row_bytes: int, host_bytes: int) -> float:
    """The share of host rows that CPU threads read while kernels read the others.

    As was measured to be fastest: 0 for kernels alone (also where nothing was measured), 1 for
    threads alone.

    Args:
        file: the file that :func:`save_speeds` wrote.
        row_bytes: bytes of a row.
        host_bytes: bytes of all of the table's rows in host memory.
    """
    dense, sparse = _load_speeds(file)
    known = sparse if host_bytes >= SPARSE_BYTES else dense
    if not known:
        return 0.0
    narrower = [width for width in known if width <= row_bytes]
    return known[max(narrower, default=min(known))].fastest_share


def save_speeds(file: Path, dense: SpeedsByWidth, sparse: SpeedsByWidth) -> None:
    """Keeps speeds by row bytes, for tables that are created from now on.

    Args:
        file: where to write.
        dense: for rows that are close together.
        sparse: for rows that are far apart, as a mini-batch's rows are in a table with
            :data:`SPARSE_BYTES` or more in host memory.
    """
    by_width = [{str(w): speeds for w, speeds in r.items()} for r in (dense, sparse)]
    keep(file, json.dumps(by_width))
    _load_speeds.cache_clear()


@cache
def _load_speeds(file: Path) -> tuple[SpeedsByWidth, SpeedsByWidth]:
    try:
        values = parse_json(file.read_bytes(), str(file))
        if not isinstance(values, list) or len(values) != 2:
            raise ValueError(f"{file} must be a list of two objects")
        dense, sparse = (_rates(Fields(rates, str(file))) for rates in values)
        return dense, sparse
    except (OSError, ValueError):  # missing or damaged: measured again
        return {}, {}


def _rates(given: Fields) -> SpeedsByWidth:
    return {int(width): _speeds(given, width) for width in given.names()}


def _speeds(given: Fields, width: str) -> Speeds:
    speeds = given.numbers(width)
    if len(speeds) != 3 or min(speeds) < 0 or min(speeds[:2]) == 0 or int(width) < 1:
        given.fail(width, "three speeds of rows of so many bytes")
    return Speeds(*speeds)
