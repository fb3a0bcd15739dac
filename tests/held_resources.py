"""What a process holds and a leak would raise: threads, children, file descriptors, memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Workers of a DataLoader that is deleted, and the threads that send to them, end a moment later.
_DEADLINE_S = 30


def resource_counts() -> dict[str, int]:
    """Numbers of threads, child processes and open file descriptors."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def check_no_growth(
    before: dict[str, int], count: Callable[[], dict[str, int]] = resource_counts
) -> None:
    """Fails if a number of `count()` is above `before`, once what is about to end has ended.

    A number may be below it: what an earlier test left behind may have ended since.
    """

    def growth() -> dict[str, int]:
        now = count()
        return {what: now[what] - before[what] for what in now if now[what] > before[what]}

    deadline = time.monotonic() + _DEADLINE_S
    while growth() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not growth()


def resident_bytes() -> int:
    """Bytes of this process that are in memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def prefetch_threads() -> int:
    """The number of threads that make batches ahead of the training loop, of Python and of C++."""
    of_python = sum(thread.name == "peergraph prefetch" for thread in threading.enumerate())
    return of_python + batch_threads()


def batch_threads() -> int:
    """The number of threads of C++ that make batches ahead of the training loop."""
    time.sleep(0.01)  # the system lists a thread for a moment after it has ended
    count = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended since
            count += (thread / "comm").read_text() == "peergraph batch\n"
    return count
