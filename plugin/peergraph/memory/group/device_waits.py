"""Ends waits of devices and threads for other ranks when a rank is lost."""

from __future__ import annotations

import threading
import weakref

from torch import Tensor

_lock = threading.Lock()
_given_up: list[weakref.ref[Tensor]] = []


def register_wait(given_up: Tensor) -> None:
    """Registers a wait: `given_up`, an int32 tensor [1], is set to 1 when a rank is lost.

    The registration ends with the tensor's lifetime.
    """
    with _lock:
        _given_up[:] = [reference for reference in _given_up if reference() is not None]
        _given_up.append(weakref.ref(given_up))


def give_up_waits() -> None:
    """Sets all registered tensors to 1."""
    with _lock:
        functions = [reference() for reference in _given_up]
    for given_up in functions:
        if given_up is not None:
            given_up.numpy()[0] = 1
