"""Closing memory that others may work with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import peergraph._C as _C

_POLL_SECONDS = 0.0005


def is_used(lease: _C.Lease) -> bool:
    """Whether a thread of this process is inside of it."""
    return lease.used_here or lease.used_elsewhere


def wait_until_unused(lease: _C.Lease, timeout: float) -> None:
    """Waits until no thread of this process is inside of a lease that has been closed.

    Looks again and again instead of being told: so there is no lock that a signal handler, the
    garbage collector or a forked child could find taken.

    Args:
        timeout: seconds.

    Raises:
        RuntimeError: this thread is inside, or another one still is after `timeout`.
    """
    if lease.used_here:
        raise RuntimeError(
            "memory cannot be closed in the midst of an operation that works with it"
        )
    deadline = time.monotonic() + timeout
    while lease.used_elsewhere:
        if time.monotonic() > deadline:
            raise RuntimeError(f"an operation has not let go of this memory within {timeout:g} s")
        time.sleep(_POLL_SECONDS)


def close_all(closers: Iterable[Callable[[], object]]) -> None:
    """Calls them in order, the rest of them also where one raises; raises the last error."""
    with ExitStack() as stack:
        for close in reversed(list(closers)):
            stack.callback(close)
