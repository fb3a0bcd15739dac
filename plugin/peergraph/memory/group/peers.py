"""The state of the host's other ranks: which are connected, which have ended and why."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from copy import copy

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory.group.call_log import CallLog
from peergraph.memory.group.calls import Call
from peergraph.memory.group.connection import Connection, Kind
from peergraph.memory.group.rank_names import RankNames

# How often to poll a process without a pidfd: its end cannot be waited for.
_LOOK_INTERVAL_S = 0.2


class Peers:
    """The connections to all other ranks, and whether the group is still usable."""

    def __init__(
        self, rank: int, connections: Iterable[Connection], names: RankNames, log: CallLog
    ) -> None:
        self.rank = rank
        self.log = log
        self.timeout = float("inf")
        """Seconds that ranks wait for each other in an exchange outside of these connections."""
        self.names = names
        self.connections = {c.rank: c for c in sorted(connections, key=lambda c: c.rank)}
        self.lock = threading.RLock()
        """Protects all fields: a thread may watch while another thread is in a collective."""
        self.lost: PeerLostError | None = None
        """The error that collectives raise once the group is unusable."""
        self.when_raised: Callable[[], None] = lambda: None
        """Called before a collective raises :attr:`lost`."""
        self.when_closed: Callable[[], None] = lambda: None
        """Called before the descriptors are closed."""
        self.when_lost: Callable[[str], None] = lambda cause: None
        """Called with the cause when a rank of this host has died."""
        self.when_leaving: Callable[[str], None] = lambda cause: None
        """Called with the cause before this rank sends its farewell."""
        self.find_silent: Callable[[], str | None] = lambda: None
        """Called when torch's network has failed; returns which machine is lost, if any."""
        self.closed = False
        _all.add(self)

    def look(self) -> None:
        """Receives what has arrived, and finds out which ranks have ended."""
        for connection in self.connections.values():
            connection.look()

    def wait(self, deadline: float) -> None:
        """Waits until data has arrived or can be sent, a rank has ended, or the deadline."""
        poll = select.poll()
        seconds = deadline - time.monotonic()
        for connection in self.connections.values():
            if connection.ended:
                continue
            events = select.POLLIN | (select.POLLOUT if connection.is_sending else 0)
            poll.register(connection.socket, events)
            if connection.pidfd is not None:
                poll.register(connection.pidfd, select.POLLIN)
            else:
                seconds = min(seconds, _LOOK_INTERVAL_S)
        ready = dict(poll.poll(max(0.0, 1e3 * seconds)))
        for connection in self.connections.values():
            connection.flush()
            if not ready or connection.pidfd in ready:
                connection.look()
            elif not connection.ended and connection.socket.fileno() in ready:
                connection.receive()

    def raise_if_gone(self, awaited: Sequence[int], call: Call) -> None:
        """Raises PeerLostError if one of these ranks will not join the collective."""
        for connection in self.connections.values():
            if connection.lost is not None:
                raise copy(connection.lost)
        gone = [r for r in awaited if self.connections[r].ended]
        if gone:
            raise PeerLostError(self.death_of(gone) or self._departure(gone, call))

    def death_of(self, ranks: Iterable[int]) -> str | None:
        """Returns which of these ranks have died, and the error; None if no rank has died."""
        ended = [self.connections[r] for r in ranks if self.connections[r].ended]
        for connection in ended:
            if connection.farewell:
                return connection.farewell
        # A rank that found ranks in different collectives has ended its connections, not itself.
        dead = [
            c
            for c in ended
            if c.farewell is None and not isinstance(c.lost, CollectiveMismatchError)
        ]
        if not dead:
            return None
        return f"{self.names([c.rank for c in dead])} died (pid {_pids(dead)})"

    def abandonment(self) -> PeerLostError | None:
        """Returns the reason of a rank that gave up the group and ended its connection later
        without an error.

        Returns None if there is no such rank. After such an end no collective can succeed, torch's
        collectives included.
        """
        return next((c.lost for c in self.connections.values() if c.ended and c.lost), None)

    def timeout_error(self, ranks: Sequence[int], call: Call, timeout: float) -> PeerLostError:
        """Returns the error for ranks that have not joined a collective in time."""
        text = f"{self.names(ranks)} did not join within {timeout:g} s: {call}"
        late = [self.connections[r] for r in ranks]
        stopped = [c for c in late if c.process is not None and c.process.is_stopped()]
        if stopped:
            names = self.names([c.rank for c in stopped])
            verb = "are" if len(stopped) > 1 else "is"
            text += f"; {names} {verb} stopped (pid {_pids(stopped)}; by SIGSTOP or a debugger)"
        return PeerLostError(text)

    def give_up(self, error: PeerLostError, *, ends_waits: bool = False) -> None:
        """Makes the group unusable, and sends the reason to the other ranks.

        Args:
            ends_waits: whether others may wait outside of these connections: the end of the
                connection tells their watchers.
        """
        if self.lost is not None:
            return
        self.lost = error
        kind = Kind.MISMATCH if isinstance(error, CollectiveMismatchError) else Kind.LOST
        for connection in self.connections.values():
            connection.send(kind, str(error).encode())
            if ends_waits:
                connection.end()

    def leave(self, cause: str = "") -> None:
        """Sends a farewell: the error that ends this rank, or "" for success."""
        if not self.closed:
            self.when_leaving(cause)
        with self.lock:
            for connection in self.connections.values():
                if not self.closed:
                    connection.send(Kind.FAREWELL, cause.encode())
            self.close()

    def close(self) -> None:
        """Closes all descriptors without a farewell."""
        if self.closed:
            return
        self.closed = True
        self.when_closed()
        for connection in self.connections.values():
            connection.close()

    def _departure(self, ranks: Sequence[int], call: Call) -> str:
        pids = _pids([self.connections[r] for r in ranks])
        return f"{self.names(ranks)} left the group (pid {pids}) without joining {call}"


def all_peers() -> list[Peers]:
    """Returns the peers of all groups that this process is in."""
    return list(_all)


def _close_all() -> None:
    for peers in all_peers():
        peers.close()


def _pids(connections: Sequence[Connection]) -> str:
    return ", ".join(str(c.pid) for c in connections)


_all: weakref.WeakSet[Peers] = weakref.WeakSet()
# A forked child is no rank. If it kept the sockets, other ranks would not see the rank's end.
os.register_at_fork(after_in_child=_close_all)
