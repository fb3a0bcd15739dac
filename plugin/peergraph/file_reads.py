"""Reads of files in large pieces, by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MOST_READERS = 8
"""More threads than this do not read faster."""


def read_into(fd: int, path: Path, offset: int, buffer: memoryview) -> None:
    """Fills the buffer with the bytes of a file from `offset` on.

    Raises:
        ValueError: the file is too short.
        OSError: the file cannot be read.
    """
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if count == 0:
            raise ValueError(
                f"{path} ends at byte {offset + done}, {len(buffer) - done} more were expected"
            )
        done += count


def in_threads(work: Callable[[int], None], pieces: range, threads: int) -> None:
    """Calls `work` with each piece, in several threads; raises the first error."""
    threads = min(threads, MOST_READERS, len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads, "peergraph_read") as pool:
        for _ in pool.map(work, pieces):
            pass
