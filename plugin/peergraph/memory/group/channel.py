"""Collectives between the ranks of one host: exact about who is missing, bounded in time.

A key-value store (torch's TCPStore, served by local rank 0) carries them rather than Gloo, whose
collectives cannot say which rank is missing and notice a dead one only where they talk to it.
Nothing here is on a hot path: loads from shared memory are one-sided.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from torch.distributed import Store  # type: ignore[attr-defined]

from peergraph.errors import PeerLostError
from peergraph.memory.group.process import ProcessId

T = TypeVar("T")

_FIRST_POLL_S = 1e-4
_LAST_POLL_S = 5e-3
_LIVENESS_INTERVAL_S = 0.05
# How long the death of a process may lag behind the loss of its connection.
_DEATH_LAG_S = 1.0
# TCPStore refuses messages above 8 MiB.
_MAX_VALUE_BYTES = 4 << 20


def wait_for_keys(
    store: Store,
    keys: Sequence[str],
    deadline: float,
    check_peers: Callable[[list[int]], None],
) -> list[int]:
    """Polls until all keys are set or the deadline has passed; returns the positions still missing.

    `check_peers(missing)` runs now and then meanwhile, and may raise.
    """
    missing = list(range(len(keys)))
    pause, next_check = _FIRST_POLL_S, time.monotonic() + _LIVENESS_INTERVAL_S
    while True:
        while missing and store.check([keys[missing[0]]]):
            missing.pop(0)
        now = time.monotonic()
        if not missing or now >= deadline:
            return [i for i in missing if not store.check([keys[i]])]
        if now >= next_check:
            check_peers([i for i in missing if not store.check([keys[i]])])
            next_check = now + _LIVENESS_INTERVAL_S
        time.sleep(pause)
        pause = min(2 * pause, _LAST_POLL_S)


class Channel:
    """Exchanges byte strings between `size` ranks; every method is collective."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        store.set_timeout(timedelta(seconds=timeout))
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._round = 0
        self._pid = os.getpid()
        self._lost: str | None = None
        self._peers: list[ProcessId] = []
        own = ProcessId.own()
        records = self.exchange(f"{own.pid} {own.start} {own.namespace}".encode())
        for record in records:
            pid, start, namespace = record.decode().split(" ")
            self._peers.append(ProcessId(int(pid), int(start), namespace))

    def exchange(self, value: bytes) -> list[bytes]:
        """Returns every rank's value, in order of rank. Raises PeerLostError."""
        return self._guarded(lambda deadline: self._exchange(value, deadline))

    def await_ranks(self, missing: Callable[[float], list[int]]) -> None:
        """Waits for ranks that announce themselves elsewhere. Raises PeerLostError.

        Args:
            missing: waits for so many seconds and returns the ranks that have not come.
        """

        def wait(deadline: float) -> None:
            while ranks := missing(_LIVENESS_INTERVAL_S):
                if time.monotonic() >= deadline:
                    raise PeerLostError(f"{_ranks(ranks)} did not join within {self._timeout:g} s")
                self._raise_if_lost(ranks)

        self._guarded(wait)

    def _guarded(self, work: Callable[[float], T]) -> T:
        """Gives `work` a deadline; the loss of a rank is told to the others, and stays."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "collectives are for the ranks themselves: this process was forked from one"
            )
        if self._lost is not None:
            raise PeerLostError(self._lost)
        deadline = time.monotonic() + self._timeout
        try:
            return work(deadline)
        except PeerLostError as error:
            self._lost = str(error)
            self._tell_others(self._lost)
            raise
        except RuntimeError as error:
            self._lost = self._explain_broken_store(str(error))
            raise PeerLostError(self._lost) from error

    def _exchange(self, value: bytes, deadline: float) -> list[bytes]:
        prefix = f"{self._round}/"
        self._round += 1
        ranks = range(self._size)
        self._put(f"{prefix}{self._rank}", value)
        self._wait([f"{prefix}{r}" for r in ranks], deadline)
        values = [self._get(f"{prefix}{r}") for r in ranks]
        acks = [f"{prefix}read/{r}" for r in ranks]
        self._set(acks[self._rank], b"")
        if self._rank == 0:
            # The server leaves a round last: it may be about to exit.
            self._wait(acks, deadline)
            self._forget(prefix, values)
        return values

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # torch's stubs forget bytes

    def _put(self, key: str, value: bytes) -> None:
        chunks = range(_MAX_VALUE_BYTES, len(value), _MAX_VALUE_BYTES)
        for i, begin in enumerate(chunks):
            self._set(f"{key}/{i}", value[begin : begin + _MAX_VALUE_BYTES])
        self._set(key, b"%d " % len(chunks) + value[:_MAX_VALUE_BYTES])

    def _get(self, key: str) -> bytes:
        count, _, head = self._store.get(key).partition(b" ")
        return b"".join([head, *(self._store.get(f"{key}/{i}") for i in range(int(count)))])

    def _forget(self, prefix: str, values: list[bytes]) -> None:
        for r, value in enumerate(values):
            self._store.delete_key(f"{prefix}{r}")
            self._store.delete_key(f"{prefix}read/{r}")
            for i in range(len(range(_MAX_VALUE_BYTES, len(value), _MAX_VALUE_BYTES))):
                self._store.delete_key(f"{prefix}{r}/{i}")

    def _wait(self, keys: list[str], deadline: float) -> None:
        missing = wait_for_keys(self._store, keys, deadline, self._raise_if_lost)
        if missing:
            raise PeerLostError(f"{_ranks(missing)} did not join within {self._timeout:g} s")

    def _raise_if_lost(self, missing: list[int]) -> None:
        dead = [r for r in missing if self._peers and not self._peers[r].is_alive()]
        if dead:
            raise PeerLostError(self._dead_message(dead))
        if self._store.check(["lost"]):
            raise PeerLostError(self._store.get("lost").decode())

    def _dead_message(self, dead: list[int]) -> str:
        return f"{_ranks(dead)} died (pid {', '.join(str(self._peers[r].pid) for r in dead)})"

    def _tell_others(self, message: str) -> None:
        try:
            self._set("lost", message.encode())
        except RuntimeError:
            return  # the server died: the others learn it from their own connections

    def _explain_broken_store(self, error: str) -> str:
        deadline = time.monotonic() + _DEATH_LAG_S
        while self._peers:
            dead = [r for r, peer in enumerate(self._peers) if not peer.is_alive()]
            if dead:
                return self._dead_message(dead)
            if time.monotonic() > deadline:
                break
            time.sleep(_LIVENESS_INTERVAL_S)
        return f"rank 0 closed the connection ({error.splitlines()[0]})"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
