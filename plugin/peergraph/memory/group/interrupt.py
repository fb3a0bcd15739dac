"""An exception for the main thread, raised from another one."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from peergraph.errors import PeerLostError


class Interrupt:
    """Makes the main thread raise PeerLostError at the next line of Python that it comes to."""

    def __init__(self) -> None:
        self.raised = threading.Event()
        """Set once the main thread raises it."""

    def arm(self, message: str) -> None:
        """To be raised as soon as the main thread is back from what it calls."""
        _set(_named(message, self.raised))

    def disarm(self) -> None:
        """The main thread has heard of it in another way."""
        if threading.current_thread() is threading.main_thread():
            self.raised.set()
            _set(None)


def _named(message: str, raised: threading.Event) -> type[PeerLostError]:
    """A class, since the interpreter takes nothing else; it makes its text by itself."""

    class Named(PeerLostError):
        def __init__(self, *args: object) -> None:
            super().__init__(*(args or (message,)))
            raised.set()

        def __reduce__(self) -> tuple[Any, ...]:
            return (PeerLostError, self.args)

    Named.__name__, Named.__qualname__ = PeerLostError.__name__, PeerLostError.__qualname__
    Named.__module__ = PeerLostError.__module__
    return Named


def _set(kind: type[PeerLostError] | None) -> None:
    value = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    thread = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, value)
