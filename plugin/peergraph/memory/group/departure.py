"""What a rank tells the others as its process ends: that all went well, or of what it died.

A process that is killed tells nothing; the others see that from the end of its connections.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from multiprocessing.util import Finalize

from peergraph.memory.group.peers import Peers, all_peers

# How long the end of a process may lag behind what torch's own connections show of it.
_DEATH_LAG_S = 0.5
_LOOK_INTERVAL_S = 0.02
_LONGEST_TEXT = 300


def tell_at_exit() -> None:
    """Has this process say farewell to all its peers when it ends."""
    _register(os.getpid())


@functools.cache
def _register(pid: int) -> None:
    # Runs in processes of multiprocessing, too, where atexit does not.
    Finalize(None, _leave_all, exitpriority=-1)


def _leave_all() -> None:
    error = _ends_with()
    for peers in all_peers():
        peers.leave("" if error is None else _cause(peers, error))


def _ends_with() -> BaseException | None:
    """The exception that ends this process; None where it ends well.

    An exit code other than 0 that a script gives itself (sys.exit) cannot be seen here.
    """
    error = sys.exc_info()[1]  # in multiprocessing's processes it is still on its way
    if error is None and not hasattr(sys, "ps1"):  # where a prompt is, it ended nothing
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return error.__context__ or error
    return error


def _cause(peers: Peers, error: BaseException) -> str:
    """Who died first: a rank that ends because another one has died says so."""
    deadline = time.monotonic() + _DEATH_LAG_S
    with peers.lock:
        while isinstance(error, RuntimeError) and peers.lost is None:
            peers.look()
            found = peers.death_of(peers.connections)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_INTERVAL_S)
        if peers.lost is not None:
            return str(peers.lost)
    text = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_TEXT]
    return f"rank {peers.rank} died (pid {os.getpid()}) of {text}"
