"""Exchanges of byte strings between the ranks of one host.

An exchange names the missing ranks, ends at a deadline, and ends at once on a signal. Every two
ranks have a connection: no rank serves the others, and the end of a stream shows a rank's death.
Exchanges are not on a hot path: loads from shared memory are one-sided.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory.group.calls import Call, describe_callers, difference
from peergraph.memory.group.connection import Kind, Part
from peergraph.memory.group.peers import Peers

# In other waits than exchanges: how often the peers are polled.
_LOOK_INTERVAL_S = 0.05


class Channel:
    """A rank's connections to the other ranks of its host, for collectives."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self._pid = os.getpid()
        self._busy = False
        self._broken_off: tuple[int, BaseException] | None = None
        # A rank that has dropped its group leaves it.
        weakref.finalize(self, _leave, self._pid, peers).atexit = False

    def exchange(self, call: Call, value: bytes, timeout: float) -> list[memoryview]:
        """Returns every rank's value, in order of rank. Collective.

        Raises PeerLostError if a rank is missing, CollectiveMismatchError if a rank is in another
        collective.
        """
        with self._collective(call, timeout) as deadline:
            self._enter(call, sends_name=True)
            encoded = call.encode()
            for connection in self.peers.connections.values():
                connection.send(Kind.VALUE, value, encoded)
            parts = {self.peers.rank: Part(encoded, memoryview(value))}
            for rank, part in self._arrivals(call, deadline, timeout):
                parts[rank] = part
            in_order = [parts[rank] for rank in sorted(parts)]
            different = difference([part.call for part in in_order], self.peers.names)
            if different:
                raise CollectiveMismatchError(different)
            return [part.value for part in in_order]

    def announce(self, call: Call, timeout: float) -> None:
        """Tells the other ranks that this one joins an exchange outside of these connections.

        It does not wait. Raises PeerLostError if the group is unusable, CollectiveMismatchError if
        another rank has joined another exchange.
        """
        with self._collective(call, timeout):
            self.peers.timeout = timeout
            self._enter(call, sends_name=False)

    def await_ranks(
        self, call: Call, missing: Callable[[float], list[int]], timeout: float
    ) -> None:
        """Waits for ranks that announce themselves in another way. Raises PeerLostError.

        Args:
            missing: ``missing(seconds)`` waits that long and returns the ranks that are missing.
        """
        with self._collective(call, timeout) as deadline:
            self._enter(call, sends_name=True)
            while ranks := missing(_LOOK_INTERVAL_S):
                self.peers.look()
                self.peers.raise_if_gone(ranks, call)
                if time.monotonic() >= deadline:
                    raise self.peers.timeout_error(ranks, call, timeout)

    def break_off(self, call: Call, error: BaseException) -> None:
        """Gives up the group because this rank does not finish the collective."""
        if os.getpid() == self._pid:
            self._broken_off = self._broken_off or (call.number, error)
            reason = (
                f"{self.peers.names([self.peers.rank])} broke off {call}: {type(error).__name__}"
            )
            with self.peers.lock:
                self.peers.give_up(PeerLostError(reason))

    def end_of(self, call: Call, error: Exception) -> BaseException:
        """Returns the error that a collective raises: the first error, which broke it off.

        The cleaning up after that error fails too, and the error of the cleaning up is not shown.
        """
        if self._broken_off is None or not isinstance(error, PeerLostError):
            return error
        number, first = self._broken_off
        return first if number == call.number else error

    def _enter(self, call: Call, *, sends_name: bool) -> None:
        """Writes the call to the log. Raises CollectiveMismatchError if a rank that does not wait
        for this rank's connection has written another.
        """
        others = self.peers.log.enter(call, sends_name=sends_name)
        if others:
            texts = dict(sorted({**others, self.peers.rank: call.in_full()}.items()))
            error = CollectiveMismatchError(describe_callers(texts, self.peers.names))
            self.peers.give_up(error, ends_waits=True)
            raise error

    def _arrivals(self, call: Call, deadline: float, timeout: float) -> Iterator[tuple[int, Part]]:
        """Yields the other ranks' parts as they arrive, until all have arrived and this rank's part
        is sent.
        """
        connections = self.peers.connections
        missing = set(connections)
        while True:
            for rank in sorted(missing):
                part = connections[rank].take()
                if part is not None:
                    missing.remove(rank)
                    yield rank, part
            awaited = sorted(missing | {r for r, c in connections.items() if c.is_sending})
            if not awaited:
                return
            self.peers.raise_if_gone(awaited, call)
            if time.monotonic() >= deadline:
                raise self.peers.timeout_error(awaited, call, timeout)
            self.peers.wait(deadline)

    @contextmanager
    def _collective(self, call: Call, timeout: float) -> Iterator[float]:
        """Yields the deadline of a collective. If the collective fails, gives up the group.

        Giving up also informs the other ranks: a rank that joined late would disturb their next
        collectives.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                "collectives are for the ranks themselves: this process was forked from one"
            )
        deadline = time.monotonic() + timeout
        if not self.peers.lock.acquire(timeout=timeout):
            raise RuntimeError(f"another thread was in a collective when this one called {call}")
        if self._busy:
            self.peers.lock.release()
            raise RuntimeError(f"{call} was called within another collective, by a signal handler")
        self._busy = True
        try:
            if self.peers.lost is not None:
                raise copy(self.peers.lost)
            yield deadline
        except PeerLostError as error:
            self.peers.give_up(error)
            self.peers.when_raised()
            raise
        except BaseException as error:
            self.break_off(call, error)
            raise
        finally:
            self._busy = False
            self.peers.lock.release()


def _leave(pid: int, peers: Peers) -> None:
    if os.getpid() == pid:
        peers.leave()
