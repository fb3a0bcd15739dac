"""Threads that the end of a process does not wait for, unless they are in C++ code.

While the interpreter shuts down, a daemon thread that comes back from C++ code of torch is ended
within a destructor, which ends the process: "terminate called without an active exception", with
SIGABRT in place of the exit code. So the process waits for those that are not idle, before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

_Item = TypeVar("_Item")

_threads: list[threading.Thread] = []
_idle: set[int] = set()  # numbers of threads

_LOOK_INTERVAL_S = 0.01


def start_daemon(work: Callable[[], object], name: str) -> threading.Thread:
    """Calls `work` in a daemon thread, which :func:`await_daemons` waits for."""
    thread = daemon_thread(work, name)
    thread.start()
    return thread


def daemon_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Returns the thread of :func:`start_daemon` before it is started."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    _threads[:] = [other for other in _threads if other.ident is None or other.is_alive()]
    _threads.append(thread)
    return thread


def next_of(items: SimpleQueue[_Item]) -> _Item:
    """Waits for the next item of a queue. Meanwhile this thread is idle: nobody waits for it."""
    number = threading.get_ident()
    _idle.add(number)
    try:
        return items.get()
    finally:
        _idle.discard(number)


def await_daemons(seconds: float) -> bool:
    """Waits until all daemon threads have ended or are idle, also those that they start meanwhile.

    Returns:
        Whether they have.
    """
    deadline = time.monotonic() + seconds
    while busy := [thread for thread in list(_threads) if _is_busy(thread)]:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        busy[0].join(min(left, _LOOK_INTERVAL_S))
    return True


def _is_busy(thread: threading.Thread) -> bool:
    if thread is threading.current_thread():
        return False
    return thread.is_alive() and thread.ident not in _idle
