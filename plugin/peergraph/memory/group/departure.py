"""The farewell that a rank sends as its process ends: success, or the error that ended it.

A process that is killed sends no farewell; the other ranks see the end of its connections.
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
from peergraph.memory.group.daemon_threads import await_daemons
from peergraph.memory.group.device_waits import give_up_waits
from peergraph.memory.group.peers import Peers, all_peers

# torch's connections may show the end of a process this much earlier than Peergraph's.
_DEATH_LAG_S = 0.5
_LOOK_INTERVAL_S = 0.02
_LONGEST_TEXT = 300
# For threads in code of torch, such as those that abort communicators of NCCL.
_LAST_CALLS_S = 5.0
# Words in the errors that torch raises after the end of a process on another machine.
_NETWORK_WORDS = ("gloo", "nccl", "connection", "socket", "broken pipe")


def send_farewell_at_exit() -> None:
    """Makes this process send a farewell to its peers when it ends. If it ends because another rank
    died, its error names that rank.
    """
    _register(os.getpid())


@functools.cache
def _register(pid: int) -> None:
    # Runs in processes of multiprocessing too, where atexit and sys.excepthook do not run.
    util.Finalize(None, _send_farewells, exitpriority=-1)
    if sys.version_info >= (3, 13) and multiprocessing.parent_process() is not None:
        _record_exit_code()
    sys.excepthook = functools.partial(_name_the_cause, sys.excepthook)


def _record_exit_code() -> None:
    """Records the exit code of this process of multiprocessing for :func:`error_at_exit`.

    From Python 3.13 on, a process of multiprocessing runs its exit functions after it has dropped
    the exception that ended it. Before that it flushes its streams, in a frame that has the exit
    code.
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
    """Returns the text about the death that caused an error; None if no death caused it, or if the
    error names it already.
    """
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
        # From here on nobody watches the other ranks, and the process cannot end while a GPU waits.
        give_up_waits()
    if not await_daemons(_LAST_CALLS_S) and error is not None:
        # The error has been shown. The end of the interpreter would abort the process.
        sys.stdout.flush()
        sys.stderr.flush()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else 1)


def error_at_exit() -> BaseException | None:
    """Returns the exception that ends this process; None if it ends without an error.

    An exit code other than 0 that a script passes to sys.exit is not visible here.
    """
    error = sys.exc_info()[1]  # in a process of multiprocessing it is still being handled
    if error is None and _exit_codes and _exit_codes[-1] != 0:
        return SystemExit(_exit_codes[-1])
    if error is None and not hasattr(sys, "ps1"):  # in an interactive session it ended nothing
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return error.__context__ or error
    return error


def _cause(peers: Peers, error: BaseException) -> str:
    """Returns the text of a farewell: this rank's error, or the death of another rank that caused
    it.
    """
    may_follow = isinstance(error, RuntimeError) or bool(_exit_codes)
    if may_follow and (lost := _first_death(peers, error)):
        return lost
    text = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_TEXT]
    return f"{peers.names([peers.rank])} died (pid {os.getpid()}) of {text}"


def _first_death(peers: Peers, error: BaseException) -> str | None:
    """Returns why the group is lost, None if it is not. Waits a moment, since torch may see a death
    earlier.

    Args:
        error: the error that ends this process.
    """
    deadline = time.monotonic() + _DEATH_LAG_S
    # The watcher must not raise its error while this error is handled.
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
