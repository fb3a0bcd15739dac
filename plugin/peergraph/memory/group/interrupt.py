"""Raises an exception in the main thread from another thread."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from peergraph import _C
from peergraph.errors import PeerLostError

# How long to wait for the main thread to leave the code that takes or releases a lock.
_LOCKING_S = 1.0
# Functions of the module `threading` that wait, and that an exception may end at any line.
_WAITS = ("wait", "wait_for", "join", "_wait_for_tstate_lock")


class Interrupt:
    """Makes the main thread raise PeerLostError at its next line of Python."""

    def __init__(self) -> None:
        self.raised = threading.Event()
        """Set once the main thread raises it."""

    def arm(self, error: PeerLostError) -> None:
        """Raises the error as soon as the main thread returns to Python, unless it is disarmed."""
        deadline = time.monotonic() + _LOCKING_S

        def raise_or_postpone() -> PeerLostError | None:
            """Runs in the main thread, between two of its instructions."""
            if self.raised.is_set():
                return None
            if time.monotonic() < deadline and _changes_a_lock(sys._getframe().f_back):
                ask()
                return None
            self.raised.set()
            return error

        def ask() -> None:
            while not _C.call_in_main_thread(raise_or_postpone):
                time.sleep(1e-3)

        ask()

    def disarm(self) -> None:
        """Cancels the error for good: the main thread has raised it in another way, or it ends."""
        if threading.current_thread() is threading.main_thread():
            self.raised.set()


def _changes_a_lock(frame: FrameType | None) -> bool:
    """Returns whether a function of Python takes or releases a lock, as Condition's do.

    After an exception there the lock could stay locked, and threads that wait for it never end.
    """
    if frame is None:
        return False
    name = frame.f_code.co_name
    if frame.f_code.co_filename == threading.__file__:
        return name not in _WAITS
    return name in ("__enter__", "__exit__")
