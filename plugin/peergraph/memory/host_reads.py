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


def prefers_staging(file: Path, row_bytes: int) -> bool:
    """Whether rows of a width are brought by CPU threads, as measured, or as the environment
    variable PEERGRAPH_HOST_READS says ("kernel" or "staged"). Kernels where nothing is known.

    Args:
        file: where :func:`remember` wrote.

    Raises:
        ValueError: the variable says something else.
    """
    said = os.environ.get("PEERGRAPH_HOST_READS")
    if said is not None:
        if said not in (KERNEL, STAGED):
            raise ValueError(f"PEERGRAPH_HOST_READS must be {KERNEL!r} or {STAGED!r}, got {said!r}")
        return said == STAGED
    known = _known(file)
    if not known:
        return False
    narrower = [width for width in known if width <= row_bytes]
    by_kernel, staged = known[max(narrower, default=min(known))]
    return staged > _LEAST_GAIN * by_kernel


def remember(file: Path, rates: Mapping[int, tuple[float, float]]) -> None:
    """Keeps bytes per second by row bytes: by kernels, and staged. For tables made from now on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".part-{os.getpid()}")
    part.write_text(json.dumps({str(width): pair for width, pair in rates.items()}))
    part.replace(file)
    _known.cache_clear()


@cache
def _known(file: Path) -> dict[int, tuple[float, float]]:
    try:
        values = json.loads(file.read_text())
        return {int(width): (float(a), float(b)) for width, (a, b) in values.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):  # damaged: measured anew
        return {}
