"""`taking_turns`: Python's threads take turns often, while one makes batches and one trains."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds. A thread that wants Python's lock gets it when the other has had it for so long. Torch's
# functions release the lock, but take it again before another thread has woken up: with Python's
# 5 ms a thread that makes batches waits for a step of the loop, and then the loop for the thread.
_INTERVAL_S = 5e-5

_lock = threading.Lock()
_users = 0
_interval_before = 0.0


@contextmanager
def taking_turns() -> Iterator[None]:
    """In this context, in whatever thread, ``sys.getswitchinterval()`` is at most 50 us.

    Afterwards it is what it was, unless something else has set it meanwhile.
    """
    global _users, _interval_before
    with _lock:
        _users += 1
        if _users == 1:
            _interval_before = sys.getswitchinterval()
            sys.setswitchinterval(min(_interval_before, _INTERVAL_S))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and abs(sys.getswitchinterval() - _INTERVAL_S) < _INTERVAL_S / 10:
                sys.setswitchinterval(_interval_before)
