"""Watches for the death of other ranks of this host, and ends this rank's waits when one dies.

The watcher sees a death at once, from the end of a connection or of the process.
"""

from __future__ import annotations

import os
import select
import time

from peergraph.errors import PeerLostError
from peergraph.memory.group.alarm import Alarm
from peergraph.memory.group.daemon_threads import start_daemon
from peergraph.memory.group.peers import Peers

# How often to poll a process without a pidfd: its end cannot be waited for.
_LOOK_INTERVAL_S = 0.2
# How often to look for ranks that do not join an exchange.
_LOG_INTERVAL_S = 1.0


class Watcher:
    """A thread that watches the other ranks until one dies or this rank leaves the group.

    A rank that ended without error has not died; it is lost if this rank waits for it in an
    exchange outside of the connections.
    """

    def __init__(self, peers: Peers, alarm: Alarm) -> None:
        self._peers = peers
        self._alarm = alarm
        # Closing the write end stops the thread, which then closes the read end.
        self._stopped, stop = os.pipe()
        peers.when_closed = lambda: os.close(stop)
        # By rank: how many exchanges it had joined when it was first seen to be missing, and when.
        self._missing: dict[int, tuple[int, float]] = {}
        start_daemon(self._run, "peergraph watcher")

    def _run(self) -> None:
        try:
            while self._wait():
                cause = self._find_cause()
                if cause is not None:
                    self._peers.when_lost(str(cause))
                    self._alarm.sound(cause)
                    return
        finally:
            os.close(self._stopped)

    def _find_cause(self) -> str | PeerLostError | None:
        with self._peers.lock:
            if self._peers.closed:
                return None
            self._peers.look()
            return (
                self._peers.death_of(self._peers.connections)
                or self._peers.abandonment()
                or self._find_absent()
            )

    def _find_absent(self) -> str | None:
        """Returns which rank does not join an exchange that this rank has joined, and why."""
        log, now = self._peers.log, time.monotonic()
        for rank, connection in self._peers.connections.items():
            joined = log.count_of(rank)
            exchange = log.announced(joined + 1) if joined < log.count else None
            if exchange is None:
                self._missing.pop(rank, None)
                continue
            name = self._peers.names([rank])
            if connection.ended:
                return f"{name} left the group (pid {connection.pid}) without joining {exchange}"
            joined_before, since = self._missing.get(rank, (-1, now))
            self._missing[rank] = joined, since if joined_before == joined else now
            if joined_before == joined and now - since > self._peers.timeout:
                return f"{name} did not join within {self._peers.timeout:g} s: {exchange}"
        return None

    def _wait(self) -> bool:
        """Waits for an event of another rank; returns False once this rank has left the group."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        timeout = 1e3 * _LOG_INTERVAL_S
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
