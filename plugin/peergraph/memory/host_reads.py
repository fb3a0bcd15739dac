"""How a GPU reads rows of the host's memory: by its kernels, or brought by CPU threads.

Kernels read pinned memory without a copy, sorted by address at the link's speed where the machine
is good at it. Where it is not, CPU threads that gather into pinned staging, overlapped with copies,
are faster. Which it is, is measured once per machine, with the topology.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

KERNEL, STAGED = "kernel", "staged"
# Staging occupies CPU threads and waits on the host: it must be worth that.
_LEAST_GAIN = 1.1
STREWN_BYTES = 8 << 30
"""From so many bytes on a mini-batch's rows lie far apart: a GPU translates an address for each."""

Rates = Mapping[int, tuple[float, float]]


def prefers_staging(file: Path, row_bytes: int, host_bytes: int) -> bool:
    """Whether rows of a width are brought by CPU threads, as measured, or as the environment
    variable PEERGRAPH_HOST_READS says ("kernel" or "staged"). Kernels where nothing is known.

    Args:
        file: where :func:`remember` wrote.
        host_bytes: of all of the table's rows on the host.

    Raises:
        ValueError: the variable says something else.
    """
    said = os.environ.get("PEERGRAPH_HOST_READS")
    if said is not None:
        if said not in (KERNEL, STAGED):
            raise ValueError(f"PEERGRAPH_HOST_READS must be {KERNEL!r} or {STAGED!r}, got {said!r}")
        return said == STAGED
    close, strewn = _known(file)
    known = strewn if host_bytes >= STREWN_BYTES else close
    if not known:
        return False
    narrower = [width for width in known if width <= row_bytes]
    by_kernel, staged = known[max(narrower, default=min(known))]
    return staged > _LEAST_GAIN * by_kernel


def remember(file: Path, close: Rates, strewn: Rates) -> None:
    """Keeps bytes per second by row bytes: by kernels, and staged. For tables made from now on.

    Args:
        close: of rows that lie near each other.
        strewn: of rows far from each other, as a mini-batch's in a table of
            :data:`STREWN_BYTES` or more.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".part-{os.getpid()}")
    part.write_text(json.dumps([{str(w): pair for w, pair in r.items()} for r in (close, strewn)]))
    part.replace(file)
    _known.cache_clear()


@cache
def _known(file: Path) -> tuple[Rates, Rates]:
    try:
        close, strewn = (
            {int(width): (float(a), float(b)) for width, (a, b) in values.items()}
            for values in json.loads(file.read_text())
        )
        return close, strewn
    except (FileNotFoundError, ValueError, TypeError, AttributeError):  # damaged: measured anew
        return {}, {}
