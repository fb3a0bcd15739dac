"""Watches for the death of other ranks, and then ends this rank's waits, including torch's.

When a rank is killed, the others wait in NCCL's or Gloo's collectives until their timeouts, which
are minutes. The watcher sees the death at once, from the end of a connection or of the process.
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
from peergraph.memory.group.device_waits import give_up_waits
from peergraph.memory.group.interrupt import Interrupt
from peergraph.memory.group.peers import Peers
from peergraph.memory.group.torch_waits import abort_communicators, close_connections

# How often a process is polled whose end cannot be waited for.
_LOOK_INTERVAL_S = 0.2
# After NCCL's communicators are aborted, only waits for Gloo and for a communicator that is being
# created remain.
_ABORT_S = 1.0
# After this the process ends.
_LAST_RESORT_S = 10.0


class Watcher:
    """A thread that watches the other ranks until one dies or this rank leaves the group.

    A rank that ended without error has not died. When one has died, torch's waits end and the main
    thread raises PeerLostError at whatever line it is, as it would KeyboardInterrupt.
    """

    def __init__(self, peers: Peers, process_group: weakref.ref[Any]) -> None:
        self._peers = peers
        self._process_group = process_group
        self._interrupt = Interrupt()
        # Closing the write end stops the thread, which then closes the read end.
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
                    # A collective that runs or has failed raises in the main thread by itself.
                    tell = self._peers.lost is None and self._is_current()
                    self._peers.give_up(PeerLostError(cause))
                    if tell:
                        self._interrupt.arm(str(self._peers.lost))
                give_up_waits()
                if self._is_current():
                    abort_communicators()
                if tell:
                    self._insist()
                return
        finally:
            os.close(self._stopped)

    def _wait(self) -> bool:
        """Waits for an event of another rank; returns False once this rank has left the group."""
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
        """Whether torch.distributed's process group is still the one that the ranks joined."""
        world = dist.group.WORLD
        return world is not None and self._process_group() is world

    def _insist(self) -> None:
        """Ends the waits that aborting does not end, until the main thread has raised."""
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
