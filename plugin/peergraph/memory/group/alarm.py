"""Ends this rank's waits when another rank is lost, including waits in torch.distributed."""

from __future__ import annotations

import os
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

# Time for the waits that end when NCCL's communicators are aborted. Waits for Gloo and for a
# communicator that is being created remain.
_ABORT_S = 1.0
# Then the process ends.
_LAST_RESORT_S = 10.0


class Alarm:
    """Makes the group unusable, and raises PeerLostError in the main thread, at whatever line it
    is, like KeyboardInterrupt. The timeouts of NCCL and Gloo are minutes long.
    """

    def __init__(self, peers: Peers, process_group: weakref.ref[Any]) -> None:
        self._peers = peers
        self._process_group = process_group
        self._interrupt = Interrupt()
        peers.when_raised = self._interrupt.disarm

    def is_current(self) -> bool:
        """Returns whether torch.distributed's process group is still the one that the ranks
        joined.
        """
        world = dist.group.WORLD
        return world is not None and self._process_group() is world

    def sound(self, cause: str | PeerLostError) -> None:
        """Ends all waits. It may take seconds, so it is called in a separate thread.

        Args:
            cause: the error that collectives raise from now on, or its text.
        """
        error = PeerLostError(cause) if isinstance(cause, str) else cause
        with self._peers.lock:
            if self._peers.closed:
                return
            # A collective that is running or has failed raises in the main thread by itself.
            must_interrupt = self._peers.lost is None and self.is_current()
            self._peers.give_up(error)
            if must_interrupt:
                self._interrupt.arm(error)
        give_up_waits()
        if self.is_current():
            abort_communicators()
        if must_interrupt:
            self._end_remaining_waits()

    def _end_remaining_waits(self) -> None:
        """Ends the waits that remain after NCCL is aborted, until the main thread has raised."""
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
