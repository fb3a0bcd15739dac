"""Signs of life between machines, through torch.distributed's store.

Ranks of a host see each other's processes; ranks of other machines see only what reaches the store.
A machine is alive while one of its ranks is: within the machine, the others watch each rank.
"""

from __future__ import annotations

import os
import threading
import time

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from peergraph.memory.group.alarm import Alarm
from peergraph.memory.group.daemon_threads import start_daemon
from peergraph.memory.group.machines import Machines
from peergraph.memory.group.peers import Peers

_INTERVAL_S = 1.0
# A Python thread may wait this long for the interpreter while a C function builds a graph.
_LONGEST_SILENCE_S = 60.0
# If torch has failed already, a machine that has been silent for this long is the cause.
_SUSPICIOUS_SILENCE_S = 2.5 * _INTERVAL_S
_FAREWELL_S = 3.0


class Heartbeat:
    """A thread that sends signs of life of this rank, and checks those of the other machines."""

    def __init__(self, machines: Machines, peers: Peers, alarm: Alarm, timeout: float) -> None:
        """
        Args:
            machines: all machines.
            peers: the ranks of this machine.
            alarm: the alarm to sound when a machine is lost.
            timeout: seconds; a machine that is silent for this time, or for a minute, is lost.
        """
        self._machines = machines
        self._peers = peers
        self._alarm = alarm
        self._limit = min(timeout, _LONGEST_SILENCE_S)
        self._store = machines.substore("heartbeat")
        # If this process serves the store, the reference keeps the store alive until the other
        # machines have seen the farewell.
        self._served: Store = dist.distributed_c10d._get_default_store()
        self._keys = ["losses", "server has left"]
        self._keys += [f"{kind}/{m}" for m in range(machines.count) for kind in ("beat", "left")]
        self._others = [m for m in range(machines.count) if m != machines.index]
        self._beats = dict.fromkeys(self._others, -1)
        self._heard = dict.fromkeys(self._others, time.monotonic())
        self._left: set[int] = set()
        self._server_has_left = False
        self._cause: str | None = None
        self._leaves = False
        self._wake = threading.Event()
        self._thread = start_daemon(self._run, "peergraph heartbeat")
        peers.when_leaving = self.leave
        peers.find_silent = self.find_silent

    def report(self, cause: str) -> None:
        """Tells the other machines that a rank of this one is lost. Returns at once."""
        self._cause = cause
        self._wake.set()

    def leave(self, cause: str) -> None:
        """Tells the other machines that this rank ends.

        Args:
            cause: the error that ends it, or "" for success.
        """
        if threading.current_thread() is self._thread:
            return
        self._cause = self._cause or cause or None
        self._leaves = True
        self._wake.set()
        self._thread.join(_FAREWELL_S)

    def find_silent(self) -> str | None:
        """Returns which machine is lost, after torch's network has failed; None if all are alive.
        Waits for seconds until it is certain.
        """
        deadline = time.monotonic() + _SUSPICIOUS_SILENCE_S + 2 * _INTERVAL_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._peers.lost is not None:
                return str(self._peers.lost)
            for machine in self._others:
                silence = time.monotonic() - self._heard[machine]
                if machine not in self._left and silence > _SUSPICIOUS_SILENCE_S:
                    return self._lost(machine, silence)
            time.sleep(0.1)
        return None

    def _run(self) -> None:
        try:
            for key in self._keys:
                self._store.add(key, 0)
            while not self._is_over():
                cause = self._look()
                if cause is not None:
                    self._alarm.sound(cause)
                    return
                self._wake.wait(_INTERVAL_S)
                self._wake.clear()
        except RuntimeError as error:
            # The process that serves the store has ended. If it ended without error, nobody is
            # lost.
            if self._alarm.is_current() and not self._server_has_left and not self._leaves:
                self._alarm.sound(
                    f"{self._machines.describe(0)} is lost: torch.distributed's store, which its "
                    f"first rank or its launcher serves, cannot be reached ({error})"
                )

    def _is_over(self) -> bool:
        """Sends a pending loss or farewell; returns True once this rank has sent its farewell."""
        if self._cause is not None:
            self._store.compare_set("loss", "", self._cause)
            self._store.add("losses", 1)
        # The loop goes on after the process group is destroyed: the process may still end with an
        # error.
        if not self._leaves:
            return False
        self._store.add(f"left/{self._machines.index}", 1)
        if self._machines.rank == 0:
            self._store.add("server has left", 1)
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                time.sleep(1.5 * _INTERVAL_S)
        return True

    def _look(self) -> str | None:
        """Sends a sign of life and reads the signs of the other machines. Returns who is lost; None
        if nobody is.
        """
        self._store.add(f"beat/{self._machines.index}", 1)
        losses, server_has_left, *counts = map(int, self._store.multi_get(self._keys))
        if losses and self._cause is None:
            return self._store.get("loss").decode()
        self._server_has_left = bool(server_has_left)
        for machine in self._others:
            beats, left = counts[2 * machine : 2 * machine + 2]
            if left >= len(self._machines.ranks[machine]):
                self._left.add(machine)
            elif beats != self._beats[machine]:
                self._beats[machine], self._heard[machine] = beats, time.monotonic()
            elif time.monotonic() - self._heard[machine] > self._limit:
                return self._lost(machine, time.monotonic() - self._heard[machine])
        return None

    def _lost(self, machine: int, silence: float) -> str:
        name = self._machines.describe(machine)
        return f"{name} is lost: none of its ranks has given a sign of life for {silence:.0f} s"
