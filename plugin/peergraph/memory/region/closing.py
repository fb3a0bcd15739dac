"""Closes memory that other threads may be using."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import peergraph._C as _C

_POLL_SECONDS = 0.0005


def is_used(lease: _C.Lease) -> bool:
    """Returns whether a thread of this process holds the lease."""
    return lease.used_here or lease.used_elsewhere


def wait_until_unused(lease: _C.Lease, timeout: float) -> None:
    """Waits until no thread of this process holds a lease that has been closed.

    Polls, so that there is no lock which a signal handler, the garbage collector or a forked child
    could find locked.

    Args:
        lease: the closed lease.
        timeout: seconds.

    Raises:
        RuntimeError: this thread holds the lease, or another thread still holds it after `timeout`.
    """
    if lease.used_here:
        raise RuntimeError("memory cannot be closed within an operation that uses it")
    deadline = time.monotonic() + timeout
    while lease.used_elsewhere:
        if time.monotonic() > deadline:
            raise RuntimeError(f"an operation has not let go of this memory within {timeout:g} s")
        time.sleep(_POLL_SECONDS)


def close_all(closers: Iterable[Callable[[], object]]) -> None:
    """Calls all closers in order, even if some raise; raises the last error."""
    with ExitStack() as stack:
        for close in reversed(list(closers)):
            stack.callback(close)
