"""Chooses how a GPU reads rows in host memory: by kernels, by CPU threads, or by both at once.

Kernels read pinned memory without a copy. They reach the link's speed if the rows are close
together and sorted by address. If rows are far apart, kernels wait for address translations. CPU
threads gather rows into pinned buffers, which are copied at the same time; they do not wait for
address translations, but few threads are slow. The fastest way is measured once for each machine,
together with the topology.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from peergraph.json_fields import Fields, parse_json
from peergraph.memory.device.machine_cache import keep

# Reading by CPU threads occupies them and makes the host wait: it must be faster by this factor.
_LEAST_GAIN = 1.1
SPARSE_BYTES = 8 << 30
"""In tables with this many bytes in host memory, the rows of a mini-batch are far apart: a GPU
translates the address of each row.
"""


class Speeds(NamedTuple):
    """Bytes per second, for rows of one width that kernels, CPU threads, or both read."""

    kernel: float
    staged: float
    both: float

    @property
    def both_share(self) -> float:
        """The share of rows for CPU threads so that threads and kernels finish at the same time."""
        return self.staged / (self.kernel + self.staged)

    @property
    def fastest_share(self) -> float:
        """The share of rows that CPU threads read in the fastest way; 0 means kernels alone."""
        if max(self.staged, self.both) <= _LEAST_GAIN * self.kernel:
            return 0.0
        return self.both_share if self.both > self.staged else 1.0


SpeedsByWidth = Mapping[int, Speeds]


def staged_share(file: Path, row_bytes: int, host_bytes: int) -> float:
    """Returns the share of host rows that CPU threads read while kernels read the others.

    It is the fastest share of the measurements: 0 for kernels alone, 1 for threads alone. Without
    measurements it is 0.

    Args:
        file: the file that :func:`save_speeds` wrote.
        row_bytes: the bytes of a row.
        host_bytes: the bytes of all rows of the table in host memory.
    """
    dense, sparse = _load_speeds(file)
    by_width = sparse if host_bytes >= SPARSE_BYTES else dense
    if not by_width:
        return 0.0
    narrower = [width for width in by_width if width <= row_bytes]
    return by_width[max(narrower, default=min(by_width))].fastest_share


def save_speeds(file: Path, dense: SpeedsByWidth, sparse: SpeedsByWidth) -> None:
    """Writes measured speeds to a file, for tables that are created from now on.

    Args:
        file: the file.
        dense: by row bytes, the speeds for rows that are close together.
        sparse: by row bytes, the speeds for rows that are far apart: the rows of a mini-batch in a
            table with :data:`SPARSE_BYTES` or more in host memory.
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
    except (OSError, ValueError):  # The file is missing or damaged: nothing is known.
        return {}, {}


def _rates(values: Fields) -> SpeedsByWidth:
    return {int(width): _speeds(values, width) for width in values.names()}


def _speeds(values: Fields, width: str) -> Speeds:
    speeds = values.numbers(width)
    if len(speeds) != 3 or min(speeds) < 0 or min(speeds[:2]) == 0 or int(width) < 1:
        values.fail(width, "three speeds of rows of so many bytes")
    return Speeds(*speeds)
