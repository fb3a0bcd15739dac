"""The farewell that a rank sends as its process ends: success, or the error that ended it.

A process that is killed sends none; the other ranks see the end of its connections.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import util
from types import TracebackType

from peergraph.errors import PeerLostError
from peergraph.memory.group.device_waits import give_up_waits
from peergraph.memory.group.peers import Peers, all_peers

# How much later than on torch's connections the end of a process may be seen here.
_DEATH_LAG_S = 0.5
_LOOK_INTERVAL_S = 0.02
_LONGEST_TEXT = 300
# In errors of torch that follow from the end of a process on another machine.
_NETWORK_WORDS = ("gloo", "nccl", "connection", "socket", "broken pipe")


def send_farewell_at_exit() -> None:
    """Makes this process send a farewell to its peers when it ends, and name the first death."""
    _register(os.getpid())


@functools.cache
def _register(pid: int) -> None:
    # Runs in processes of multiprocessing, too, where atexit and sys.excepthook do not.
    util.Finalize(None, _send_farewells, exitpriority=-1)
    if sys.version_info >= (3, 13) and multiprocessing.parent_process() is not None:
        _record_exit_code()
    sys.excepthook = functools.partial(_name_the_cause, sys.excepthook)


def _record_exit_code() -> None:
    """Keeps the exit code of this process of multiprocessing for :func:`error_at_exit`.

    From Python 3.13 on, a process of multiprocessing runs its exit functions when the exception
    that ended it is gone. It flushes its streams before, in a frame that has the exit code.
    """
    flush = util._flush_std_streams  # type: ignore[attr-defined]

    def record_and_flush() -> None:
        _exit_codes.append(sys._getframe(1).f_locals.get("exitcode", 0))
        flush()

    util._flush_std_streams = record_and_flush  # type: ignore[attr-defined]


_exit_codes: list[int] = []


def _name_the_cause(
    show: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Shows an exception that ends this process.

    An error of torch that follows from another rank's death is shown as the cause of a
    PeerLostError.
    """
    lost = _lost(error)
    if lost is None:
        show(kind, error, trace)
        return
    named = PeerLostError(lost)
    named.__cause__ = error
    show(PeerLostError, named, None)


def _lost(error: BaseException) -> str | None:
    """The death that led to an error which does not name it; None if there was none."""
    if isinstance(error, PeerLostError) or not isinstance(error, RuntimeError):
        return None
    return next((lost for peers in all_peers() if (lost := _first_death(peers, error))), None)


def _send_farewells() -> None:
    error = error_at_exit()
    for peers in all_peers():
        cause = "" if error is None else _cause(peers, error)
        if multiprocessing.parent_process() is not None and error is not None and _lost(error):
            print(f"peergraph: PeerLostError: {cause}", file=sys.stderr, flush=True)
        peers.leave(cause)
    if error is not None:
        # Nobody watches the other ranks from here on, and a GPU that waits ends no process.
        give_up_waits()


def error_at_exit() -> BaseException | None:
    """The exception that ends this process; None where it ends well.

    An exit code other than 0 that a script gives itself (sys.exit) cannot be seen here.
    """
    error = sys.exc_info()[1]  # in multiprocessing's processes it is still on its way
    if error is None and _exit_codes and _exit_codes[-1] != 0:
        return SystemExit(_exit_codes[-1])
    if error is None and not hasattr(sys, "ps1"):  # where a prompt is, it ended nothing
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return error.__context__ or error
    return error


def _cause(peers: Peers, error: BaseException) -> str:
    """The text of a farewell: the first death, where this rank ends because of another's."""
    may_follow = isinstance(error, RuntimeError) or bool(_exit_codes)
    if may_follow and (lost := _first_death(peers, error)):
        return lost
    text = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_TEXT]
    return f"{peers.names([peers.rank])} died (pid {os.getpid()}) of {text}"


def _first_death(peers: Peers, error: BaseException) -> str | None:
    """Why the group is lost; waits a moment, since torch may see a death earlier.

    Args:
        error: that ends this process.
    """
    deadline = time.monotonic() + _DEATH_LAG_S
    # The watcher's error must not come while this one is looked at.
    peers.when_raised()
    with peers.lock:
        while peers.lost is None and not peers.closed and time.monotonic() < deadline:
            peers.look()
            cause = peers.death_of(peers.connections)
            if cause is not None:
                peers.give_up(PeerLostError(cause))
                break
            time.sleep(_LOOK_INTERVAL_S)
        if peers.lost is not None:
            return str(peers.lost)
    is_of_network = any(word in str(error).lower() for word in _NETWORK_WORDS)
    return peers.find_silent() if is_of_network and not peers.closed else None
