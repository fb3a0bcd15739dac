"""One process forks the ranks of all workers of pytest-xdist.

It takes seconds to import what ranks need, once for each process that forks.
"""

from __future__ import annotations

import os
from multiprocessing import forkserver

from peergraph.testing.starting import context_of

_server = forkserver._forkserver  # type: ignore[attr-defined]


def start() -> str:
    """Starts the process that forks, which ends with this one, and returns its address."""
    context_of("forked")
    return str(_server._forkserver_address)


def adopt(address: str) -> None:
    """Has this process's ranks forked by the process with this address."""
    _server._forkserver_address = address
    # The end of this pipe tells the process that forks when to end; another one has it.
    _server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    _server.ensure_running = forkserver.ensure_running = _nothing


def _nothing() -> None:
    pass
