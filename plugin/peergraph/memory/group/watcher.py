"""Sees the death of another rank and ends what this one waits for, in torch, too.

A rank that is killed leaves the others in NCCL's or Gloo's collectives until the timeout of these,
which is minutes. The watcher knows of the death at once: from the end of a connection, or of the
process itself.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory.group.interrupt import Interrupt
from peergraph.memory.group.peers import Peers
from peergraph.memory.group.torch_waits import abort_communicators, close_connections

# How often a process is looked at that gives no notice of its end.
_LOOK_INTERVAL_S = 0.2
# After the communicators are aborted, waits on Gloo and on a communicator in the making remain.
_ABORT_S = 1.0
# Then nothing else is left to be tried.
_LAST_RESORT_S = 10.0


class Watcher:
    """A thread that watches the other ranks until one dies or this rank leaves the group.

    A rank that ended well is none that died. Where one has died, torch's waits end and the main
    thread raises PeerLostError, as it would KeyboardInterrupt: at whatever line it is.
    """

    def __init__(self, peers: Peers, process_group: weakref.ref[Any]) -> None:
        self._peers = peers
        self._process_group = process_group
        self._interrupt = Interrupt()
        # What is written to the one is the end of the thread, which then closes the other.
        self._stopped, stop = os.pipe()
        peers.when_closed = lambda: os.close(stop)
        peers.when_raised = self._interrupt.disarm
        threading.Thread(target=self._run, name="peergraph watcher", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._wait():
                with self._peers.lock:
                    if self._peers.closed:
                        return
                    self._peers.look()
                    cause = self._peers.death_of(self._peers.connections)
                    cause = cause or self._peers.abandonment()
                    if cause is None:
                        continue
                    # A collective that is under way, or was, tells the main thread by itself.
                    tell = self._peers.lost is None and self._is_current()
                    self._peers.give_up(PeerLostError(cause))
                    if tell:
                        self._interrupt.arm(str(self._peers.lost))
                if self._is_current():
                    abort_communicators()
                if tell:
                    self._insist()
                return
        finally:
            os.close(self._stopped)

    def _wait(self) -> bool:
        """Waits until something has happened; False once this rank has left the group."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        timeout = None
        with self._peers.lock:
            if self._peers.closed:
                return False
            for connection in self._peers.connections.values():
                if connection.ended:
                    continue
                poll.register(connection.socket, select.POLLRDHUP)
                if connection.pidfd is not None:
                    poll.register(connection.pidfd, select.POLLIN)
                elif connection.process is not None:
                    timeout = 1e3 * _LOOK_INTERVAL_S
        return self._stopped not in dict(poll.poll(timeout))

    def _is_current(self) -> bool:
        """Whether the ranks still are those of torch.distributed."""
        world = dist.group.WORLD
        return world is not None and self._process_group() is world

    def _insist(self) -> None:
        """Until the main thread has raised: ends what aborting does not."""
        if self._interrupt.raised.wait(_ABORT_S):
            return
        close_connections(c.pid for c in self._peers.connections.values())
        if self._interrupt.raised.wait(_LAST_RESORT_S) or not _main_thread_is_in_torch():
            return
        print(
            f"peergraph: PeerLostError: {self._peers.lost}. This rank waits for it in a call of "
            "torch that cannot be ended: the process ends.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def _main_thread_is_in_torch() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    root = os.path.dirname(torch.__file__)
    return frame is not None and frame.f_code.co_filename.startswith(root)
