"""Progress bars for long transfers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BAR_FROM_BYTES = 1 << 30


@contextmanager
def progress_bar(
    what: str, num_bytes: int, progress: bool | None
) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar; yields a function that is called with the bytes of each step.

    Args:
        what: the label of the bar.
        num_bytes: the number of bytes to be moved in all.
        progress: whether to show the bar; None: for more than 1 GB, on a terminal.
    """
    if progress is None:
        progress = num_bytes > _BAR_FROM_BYTES and sys.stderr.isatty()
    if not progress:
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=num_bytes, unit="B", unit_scale=True, desc=what) as bar:
        yield bar.update
