"""Progress bars for long transfers, and the rates of stages in the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

_BAR_FROM_BYTES = 1 << 30
_BYTES_PER_EDGE = 16

_logger = logging.getLogger(__name__)

Unit = Literal["B", " edges"]


@contextmanager
def progress_bar(
    what: str, total: int, progress: bool | None, unit: Unit = "B"
) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar; yields a function that is called with the bytes of each step.

    Args:
        what: the label of the bar.
        total: the number of bytes to be moved in all, or of edges.
        progress: whether to show the bar; None: for more than 1 GB, on a terminal.
        unit: the unit of `total` and of the steps.
    """
    if progress is None:
        num_bytes = total if unit == "B" else total * _BYTES_PER_EDGE
        progress = num_bytes > _BAR_FROM_BYTES and sys.stderr.isatty()
    if not progress:
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, unit_scale=True, desc=what) as bar:
        yield bar.update


@contextmanager
def stage(
    what: str, total: int, progress: bool | None, rank: int, unit: Unit = "B"
) -> Iterator[Callable[[int], object]]:
    """A stage of the ranks' work: on rank 0 as :func:`progress_bar`, and its end is logged at INFO
    with seconds and rate.

    Args:
        what, total, progress, unit: as in :func:`progress_bar`, of all ranks together; a total of 0
            has neither bar nor rate.
        rank: this rank.
    """
    if rank:
        yield lambda _: None
        return
    start = time.perf_counter()
    with progress_bar(what, total, progress if total else False, unit) as moved:
        yield moved
    seconds = time.perf_counter() - start
    if not total:
        _logger.info("%s: %.3f s", what, seconds)
    elif unit == "B":
        _logger.info("%s: %.3f s, %.2f GB/s", what, seconds, total / seconds / 1e9)
    else:
        _logger.info("%s: %.3f s, %.1f million edges/s", what, seconds, total / seconds / 1e6)
