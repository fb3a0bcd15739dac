"""Raises an exception in the main thread from another thread."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from peergraph.errors import PeerLostError


class Interrupt:
    """Makes the main thread raise PeerLostError at its next line of Python."""

    def __init__(self) -> None:
        self.raised = threading.Event()
        """Set once the main thread raises it."""

    def arm(self, error: PeerLostError) -> None:
        """Raises the error as soon as the main thread returns to Python, unless it is disarmed."""
        if not self.raised.is_set():
            _set(_named(error, self.raised))

    def disarm(self) -> None:
        """Cancels the error for good: the main thread has raised it in another way, or it ends."""
        if threading.current_thread() is threading.main_thread():
            self.raised.set()
            _set(None)


def _named(error: PeerLostError, raised: threading.Event) -> type[PeerLostError]:
    """Returns an exception class that contains the message. The interpreter takes a class, and no
    instance.
    """
    kind, message = type(error), str(error)

    class Named(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: object) -> None:
            super().__init__(*(args or (message,)))
            raised.set()

        def __reduce__(self) -> tuple[Any, ...]:
            return (kind, self.args)

    Named.__name__, Named.__qualname__ = kind.__name__, kind.__qualname__
    Named.__module__ = kind.__module__
    return Named


def _set(kind: type[PeerLostError] | None) -> None:
    value = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    thread = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, value)
